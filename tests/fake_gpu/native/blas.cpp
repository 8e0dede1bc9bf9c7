// cuBLAS and cuBLASLt: products take the time that their operations need at the device's rate.
#include "device.h"

#include <cublasLt.h>
#include <cublas_v2.h>

using namespace fake;

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t scalars = CUBLAS_POINTER_MODE_HOST;
};
Handle* of(cublasHandle_t handle) { return reinterpret_cast<Handle*>(handle); }

cublasStatus_t product(cudaStream_t stream, const char* name, double m, double n, double k, double batch = 1) {
  return launch(stream, name, product_ns(m, n, k, batch)) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

}  // namespace

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  of(handle)->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  of(handle)->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = of(handle)->math;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  of(handle)->scalars = mode;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = of(handle)->scalars;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetSmCountTarget(cublasHandle_t, int) { return CUBLAS_STATUS_SUCCESS; }

EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                   const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                   const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return product(of(handle)->stream, "cublas_gemm", m, n, k);
}
EXPORT cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                    const float*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                                    const float*, void*, cudaDataType, int) {
  return product(of(handle)->stream, "cublas_gemm", m, n, k);
}
// What PyTorch calls for fp32 before 2.15.
EXPORT cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                     const float*, const float*, int, const float*, int, const float*, float*, int) {
  return product(of(handle)->stream, "cublas_gemm", m, n, k);
}
EXPORT cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m,
                                                int n, int k, const float*, const float*, int, long long, const float*,
                                                int, long long, const float*, float*, int, long long, int batch) {
  return product(of(handle)->stream, "cublas_batched_gemm", m, n, k, batch);
}
EXPORT cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                     const double*, const double*, int, const double*, int, const double*, double*,
                                     int) {
  return product(of(handle)->stream, "cublas_gemm", m, n, k);
}
EXPORT cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m,
                                                 int n, int k, const void*, const void*, cudaDataType, int, long long,
                                                 const void*, cudaDataType, int, long long, const void*, void*,
                                                 cudaDataType, int, long long, int batch, cublasComputeType_t,
                                                 cublasGemmAlgo_t) {
  return product(of(handle)->stream, "cublas_batched_gemm", m, n, k, batch);
}
EXPORT cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m,
                                                int n, int k, const double*, const double*, int, long long,
                                                const double*, int, long long, const double*, double*, int, long long,
                                                int batch) {
  return product(of(handle)->stream, "cublas_batched_gemm", m, n, k, batch);
}
EXPORT cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t, int m, int n, const float*, const float*,
                                     int, const float*, int, const float*, float*, int) {
  return product(of(handle)->stream, "cublas_gemv", m, n, 1);
}
EXPORT cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, void*, cudaDataType, cudaDataType) {
  return product(of(handle)->stream, "cublas_dot", n, 1, 1);
}
EXPORT cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int n, const float*, int, const float*, int, float*) {
  return product(of(handle)->stream, "cublas_dot", n, 1, 1);
}

// ---- cuBLASLt, of whose descriptors only the extents of matrices matter here

namespace {

struct Layout {
  uint64_t rows = 0, columns = 0;
  int batch = 1;
};
template <class Descriptor>
cublasStatus_t create(Descriptor* descriptor, uint64_t rows = 0, uint64_t columns = 0) {
  *descriptor = reinterpret_cast<Descriptor>(new Layout{rows, columns});
  return CUBLAS_STATUS_SUCCESS;
}
template <class Descriptor>
cublasStatus_t destroy(Descriptor descriptor) {
  delete reinterpret_cast<Layout*>(descriptor);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t, cudaDataType_t) {
  return create(product);
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return destroy(product); }
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*,
                                                     size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* wish) { return create(wish); }
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) { return destroy(wish); }
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                           cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType, uint64_t rows,
                                                 uint64_t columns, int64_t) {
  return create(layout, rows, columns);
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t which, const void* value,
                                                       size_t) {
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    reinterpret_cast<Layout*>(layout)->batch = *static_cast<const int*>(value);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = wanted > 0;
  if (*found) {
    results[0] = {};
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                                     cublasLtMatrixLayout_t first, const void*, cublasLtMatrixLayout_t, const void*,
                                     const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t result,
                                     const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  auto *left = reinterpret_cast<Layout*>(first), *out = reinterpret_cast<Layout*>(result);
  double k = out->rows ? double(left->rows) * double(left->columns) / double(out->rows) : 0;
  return product(stream, "cublaslt_matmul", double(out->rows), double(out->columns), k, out->batch);
}
