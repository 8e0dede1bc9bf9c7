// NVRTC, which compiles nothing: the real one crashes where the driver is not the real one.
//
// PyTorch looks its functions up in the library itself, so that this is a library of its own, of the real one's soname.
#include <cuda.h>
#include <nvrtc.h>

#include <cstring>
#include <set>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
constexpr size_t kImageBytes = 8;  // what nobody reads
using Names = std::set<std::string>;
Names* of(nvrtcProgram program) { return reinterpret_cast<Names*>(program); }
}  // namespace

EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = CUDA_VERSION / 1000;
  *minor = CUDA_VERSION % 1000 / 10;
  return NVRTC_SUCCESS;
}
EXPORT const char* nvrtcGetErrorString(nvrtcResult) { return "an error of the fake NVRTC"; }
EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char*, const char*, int, const char* const*,
                                      const char* const*) {
  *program = reinterpret_cast<nvrtcProgram>(new Names);
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete of(*program);
  *program = nullptr;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char* name) {
  of(program)->insert(name);
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char* name, const char** lowered) {
  *lowered = of(program)->insert(name).first->c_str();
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t* bytes) {
  *bytes = kImageBytes;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char* image) {
  memset(image, 0, kImageBytes);
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* bytes) { return nvrtcGetCUBINSize(program, bytes); }
EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* image) { return nvrtcGetCUBIN(program, image); }
EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* bytes) {
  *bytes = 1;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* text) {
  *text = 0;
  return NVRTC_SUCCESS;
}
