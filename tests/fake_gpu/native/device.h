// The fake device itself: what the libraries that stand before the real ones (runtime, driver, cuBLAS, cuDNN, CUPTI)
// share.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

constexpr int kMaxDevices = 16;
constexpr int kDriverVersion = CUDART_VERSION;  // the driver is as new as the runtime that PyTorch was built with

// What the device is like; each from an environment variable of the name in the comment.
struct Settings {
  int devices;           // FAKE_GPU_DEVICES
  size_t memory_bytes;   // FAKE_GPU_MEMORY_MIB, total of each device
  size_t context_bytes;  // FAKE_GPU_CONTEXT_MIB, in use before the first allocation
  double kernel_ns;      // FAKE_GPU_KERNEL_US, the least that a kernel takes
  double flops_per_ns;   // FAKE_GPU_TFLOPS, of matrix products
  const char* name;      // FAKE_GPU_NAME
  int major, minor;      // FAKE_GPU_CAPABILITY, as 9.0
  bool reads_true;       // FAKE_GPU_READS_TRUE: a single byte that is read back is 1, see copy()
};
const Settings& settings();

// ---- time: CLOCK_MONOTONIC, so that whoever waits for the device really waits

int64_t now_ns();
void wait_until(int64_t ns);

// ---- devices, streams, events

int current_device();
bool set_current_device(int device);  // false: there is no such device

struct Stream;
Stream* create_stream(int priority);
Stream* stream_of(cudaStream_t handle);  // the default stream is that of the current device
int64_t end_of(const Stream* stream);    // when the device is done with what was launched so far
int64_t end_of_device(int device);
void delay(Stream* stream, int64_t until_ns);
int device_of(const Stream* stream);
int number_of(const Stream* stream);
int priority_of(const Stream* stream);
bool is_capturing(const Stream* stream);
void set_capturing(Stream* stream, bool capturing);

// ---- work

enum class Work { kKernel, kCopyToDevice, kCopyToHost, kCopyOnDevice, kMemset };

// Enqueue work that takes `ns` on the stream's clock. Refuses a stream of another device than the current one, as the
// driver does. `name` must live as long as the process.
cudaError_t launch(cudaStream_t stream, const char* name, double ns, Work work = Work::kKernel, size_t bytes = 0,
                   dim3 grid = {1, 1, 1}, dim3 block = {1, 1, 1});
cudaError_t launch_function(const void* function, dim3 grid, dim3 block, void** arguments, cudaStream_t stream);
cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream);
double product_ns(double m, double n, double k, double batch);
void name_function(const void* function, const char* name);
const char* kept(const std::string& text);  // one copy of each text, for ever

// ---- memory: addresses of which the kernel backs only what is written

bool take_memory(int device, size_t bytes);  // false: there is not so much left
void return_memory(int device, size_t bytes);
uintptr_t reserve_addresses(int device, size_t bytes);
void forget_contents(void* address, size_t bytes);
size_t free_memory(int device);
int device_at(const void* address);  // -1: host memory
size_t whole_pages(size_t bytes);
constexpr size_t kPageBytes = 2 << 20;  // physical page of NVIDIA GPUs since Pascal

// ---- what was seen, for the report

cudaError_t fail(cudaError_t error, const char* function);  // is the thread's last error from now on
cudaError_t last_error(bool forget);
void unknown(const char* function);  // was called, and the fake has nothing to do there

// ---- cupti.cpp

bool recording();
void record(const char* name, int64_t called, int64_t begin, int64_t end, const Stream* stream, Work work, size_t bytes,
            dim3 grid, dim3 block);

}  // namespace fake
