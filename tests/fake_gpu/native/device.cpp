// Devices, streams, memory and clocks of the fake GPU, and the report of what was done with them.
#include "device.h"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace fake {

struct Stream {
  int device;
  int number;
  int priority = 0;
  bool capturing = false;
  int64_t end_ns = 0;
  std::unordered_map<const char*, uint64_t> launches;  // by name, which is one address for each text
};

namespace {

constexpr size_t kAddresses = size_t{1} << 41;  // of each device: more than is ever reserved, as none is used twice
constexpr uintptr_t kFirstAddress = 0x200000000000;  // of device 0, where Linux puts nothing
constexpr int64_t kLaunchLatencyNs = 2000;
constexpr double kDeviceBytesPerNs = 3000, kCopyBytesPerNs = 1500, kHostBytesPerNs = 25;
constexpr double kSpinCyclesPerNs = 1.98;
constexpr size_t kMostCopiedBytes = 64 << 20;

struct Device {
  size_t taken_bytes = 0;
  size_t most_taken_bytes = 0;
  uintptr_t next_address = 0;  // 0: no addresses are mapped yet
  Stream* default_stream = nullptr;
};

struct State {
  std::recursive_mutex lock;
  Device devices[kMaxDevices];
  std::vector<Stream*> streams;  // never destroyed: what was launched on them is reported
  std::unordered_map<const void*, const char*> functions;
  std::set<std::string> texts;
  std::map<std::string, uint64_t> unknown, errors;
};

State& state() {
  static State* kept = new State;  // PyTorch calls from its own destructors, later than ours
  return *kept;
}

using Guard = std::lock_guard<std::recursive_mutex>;

thread_local int current = 0;
thread_local cudaError_t error_of_thread = cudaSuccess;

double number(const char* variable, double otherwise) {
  const char* text = getenv(variable);
  return text && *text ? atof(text) : otherwise;
}

Stream* new_stream(int device, int priority) {
  Guard guard(state().lock);
  auto* stream = new Stream{device, 0, priority};
  for (const Stream* other : state().streams) stream->number += other->device == device;
  state().streams.push_back(stream);
  return stream;
}

}  // namespace

const Settings& settings() {
  static const Settings read = [] {
    double capability = number("FAKE_GPU_CAPABILITY", 9.0);
    const char* name = getenv("FAKE_GPU_NAME");
    return Settings{std::min(kMaxDevices, int(number("FAKE_GPU_DEVICES", 1))),
                    size_t(number("FAKE_GPU_MEMORY_MIB", 81559)) << 20,
                    size_t(number("FAKE_GPU_CONTEXT_MIB", 0)) << 20,
                    number("FAKE_GPU_KERNEL_US", 3) * 1000,
                    number("FAKE_GPU_TFLOPS", 500) * 1000,
                    name ? name : "NVIDIA H100 80GB HBM3",
                    int(capability),
                    int(capability * 10 + 0.5) % 10,
                    number("FAKE_GPU_READS_TRUE", 1) != 0};
  }();
  return read;
}

// ---- time

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void wait_until(int64_t ns) {
  constexpr int64_t kSleepPays = 100000;  // for less, ask the clock again and again
  for (int64_t left; (left = ns - now_ns()) > 0;) {
    if (left > kSleepPays) {
      timespec pause{left / 1000000000, left % 1000000000};
      nanosleep(&pause, nullptr);
    }
  }
}

// ---- devices and streams

int current_device() { return current; }

bool set_current_device(int device) {
  if (device < 0 || device >= settings().devices) return false;
  current = device;
  return true;
}

Stream* create_stream(int priority) {
  stream_of(nullptr);  // so that the default stream of a device has number 0
  return new_stream(current, priority);
}

Stream* stream_of(cudaStream_t handle) {
  if (reinterpret_cast<uintptr_t>(handle) > 2) return reinterpret_cast<Stream*>(handle);
  Guard guard(state().lock);  // 0, 1 and 2 are names of the default stream
  Stream*& stream = state().devices[current].default_stream;
  if (!stream) stream = new_stream(current, 0);
  return stream;
}

int64_t end_of(const Stream* stream) { return stream->end_ns; }

int64_t end_of_device(int device) {
  Guard guard(state().lock);
  int64_t end = 0;
  for (const Stream* stream : state().streams)
    if (stream->device == device) end = std::max(end, stream->end_ns);
  return end;
}

void delay(Stream* stream, int64_t until_ns) {
  Guard guard(state().lock);
  stream->end_ns = std::max(stream->end_ns, until_ns);
}

int device_of(const Stream* stream) { return stream->device; }
int number_of(const Stream* stream) { return stream->number; }
int priority_of(const Stream* stream) { return stream->priority; }
bool is_capturing(const Stream* stream) { return stream->capturing; }
void set_capturing(Stream* stream, bool capturing) { stream->capturing = capturing; }

// ---- work

cudaError_t launch(cudaStream_t handle, const char* name, double ns, Work work, size_t bytes, dim3 grid, dim3 block) {
  int64_t called = now_ns(), begin, end;
  Stream* stream = stream_of(handle);
  if (stream->device != current) return fail(cudaErrorInvalidResourceHandle, name);
  {
    Guard guard(state().lock);
    stream->launches[name]++;
    if (stream->capturing) return cudaSuccess;
    begin = std::max(called + kLaunchLatencyNs, stream->end_ns);
    end = stream->end_ns = begin + int64_t(ns);
  }
  if (recording()) record(name, called, begin, end, stream, work, bytes, grid, block);
  return cudaSuccess;
}

cudaError_t launch_function(const void* function, dim3 grid, dim3 block, void** arguments, cudaStream_t stream) {
  const char* name = "a function that nobody has registered";
  {
    Guard guard(state().lock);
    auto found = state().functions.find(function);
    if (found != state().functions.end()) name = found->second;
  }
  // Each thread reads and writes some 32 bytes. `torch.cuda._sleep` has its duration as an argument.
  double threads = double(grid.x) * grid.y * grid.z * block.x * block.y * block.z;
  double ns = strstr(name, "spin_kernel") ? double(**reinterpret_cast<int64_t**>(arguments)) / kSpinCyclesPerNs
                                          : settings().kernel_ns + threads * 32 / kDeviceBytesPerNs;
  return launch(stream, name, ns, Work::kKernel, 0, grid, block);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  bool to_device = device_at(to) >= 0, from_device = device_at(from) >= 0, inside = to_device && from_device;
  double ns = settings().kernel_ns + double(bytes) / (inside ? kCopyBytesPerNs : kHostBytesPerNs);
  cudaError_t error = inside      ? launch(stream, "Memcpy DtoD", ns, Work::kCopyOnDevice, bytes)
                      : to_device ? launch(stream, "Memcpy HtoD", ns, Work::kCopyToDevice, bytes)
                                  : launch(stream, "Memcpy DtoH", ns, Work::kCopyToHost, bytes);
  if (error != cudaSuccess || !bytes) return error;
  // Large copies inside the device would only make memory exist.
  if (!inside || bytes <= (1 << 20)) memcpy(to, from, std::min(bytes, kMostCopiedBytes));
  // Nothing computes, so every flag that is read back would be false: also `isfinite(...).all()` of a loss.
  if (bytes == 1 && from_device && !to_device && settings().reads_true) *static_cast<char*>(to) = 1;
  return cudaSuccess;
}

double product_ns(double m, double n, double k, double batch) {
  return settings().kernel_ns + 2 * m * n * k * batch / settings().flops_per_ns;
}

void name_function(const void* function, const char* name) {
  Guard guard(state().lock);
  state().functions[function] = kept(name);
}

const char* kept(const std::string& text) {
  Guard guard(state().lock);
  return state().texts.insert(text).first->c_str();
}

// ---- memory

size_t whole_pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

size_t free_memory(int device) {
  return settings().memory_bytes - settings().context_bytes - state().devices[device].taken_bytes;
}

bool take_memory(int device, size_t bytes) {
  Guard guard(state().lock);
  if (whole_pages(bytes) > free_memory(device)) return false;
  Device& taker = state().devices[device];
  taker.taken_bytes += whole_pages(bytes);
  taker.most_taken_bytes = std::max(taker.most_taken_bytes, taker.taken_bytes);
  return true;
}

void return_memory(int device, size_t bytes) {
  Guard guard(state().lock);
  state().devices[device].taken_bytes -= whole_pages(bytes);
}

uintptr_t reserve_addresses(int device, size_t bytes) {
  Guard guard(state().lock);
  Device& owner = state().devices[device];
  if (!owner.next_address) {
    uintptr_t first = kFirstAddress + device * kAddresses;
    void* wanted = reinterpret_cast<void*>(first);
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap(wanted, kAddresses, PROT_READ | PROT_WRITE, kind, -1, 0) != wanted) {
      fprintf(stderr, "fake GPU: the kernel does not let it have its addresses\n");
      abort();
    }
    madvise(wanted, kAddresses, MADV_DONTDUMP);
    owner.next_address = first + kAddresses;
  }
  return owner.next_address -= whole_pages(bytes);  // downwards, as Linux places mappings
}

void forget_contents(void* address, size_t bytes) { madvise(address, whole_pages(bytes), MADV_DONTNEED); }

int device_at(const void* address) {
  auto value = reinterpret_cast<uintptr_t>(address);
  bool inside = value >= kFirstAddress && value < kFirstAddress + kMaxDevices * kAddresses;
  return inside ? int((value - kFirstAddress) / kAddresses) : -1;
}

// ---- the report

cudaError_t fail(cudaError_t error, const char* function) {
  Guard guard(state().lock);
  state().errors[std::string(function) + " " + cudaGetErrorName(error)]++;
  return error_of_thread = error;
}

cudaError_t last_error(bool forget) {
  cudaError_t error = error_of_thread;
  if (forget) error_of_thread = cudaSuccess;
  return error;
}

void unknown(const char* function) {
  Guard guard(state().lock);
  state().unknown[function]++;
}

namespace {

std::string readable(const char* name) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status ? name : demangled;
  free(demangled);
  return text;
}

// One line each, with tabs: launch DEVICE STREAM COUNT NAME · memory DEVICE MOST_BYTES · error COUNT WHAT ·
// unknown COUNT FUNCTION
std::string report() {
  Guard guard(state().lock);
  std::string text;
  auto line = [&text](std::initializer_list<std::string> words) {
    for (const std::string& word : words) text += (&word == words.begin() ? "" : "\t") + word;
    text += "\n";
  };
  for (const Stream* stream : state().streams)
    for (auto& [name, count] : stream->launches)
      line({"launch", std::to_string(stream->device), std::to_string(stream->number), std::to_string(count),
            readable(name)});
  for (int device = 0; device < settings().devices; device++)
    if (size_t bytes = state().devices[device].most_taken_bytes)
      line({"memory", std::to_string(device), std::to_string(bytes)});
  for (auto& [what, count] : state().errors) line({"error", std::to_string(count), what});
  for (auto& [function, count] : state().unknown) line({"unknown", std::to_string(count), function});
  return text;
}

void forget() {
  Guard guard(state().lock);
  for (Stream* stream : state().streams) stream->launches.clear();
  state().errors.clear();
  state().unknown.clear();
}

void write_report() {
  const char* path = getenv("FAKE_GPU_LOG");
  static bool written = false;
  if (!path || written) return;
  written = true;
  std::string text = report();
  FILE* file = text.empty() ? nullptr : fopen(path, "a");
  if (!file) return;
  fwrite(text.data(), 1, text.size(), file);  // a single write(2), so that processes that end together do not mix
  fclose(file);
}

struct AtEnd {
  AtEnd() { pthread_atfork(nullptr, nullptr, forget); }  // what its parent has launched is not a child's
  ~AtEnd() { write_report(); }
} at_end;

}  // namespace
}  // namespace fake

// For a program that counts while it runs: writes the report so far into `text`, or says how long it is.
EXPORT size_t fake_gpu_report(char* text, size_t size) {
  std::string report = fake::report();
  if (text) strncpy(text, report.c_str(), size);
  return report.size() + 1;
}

EXPORT void fake_gpu_forget() { fake::forget(); }

// Programs that leave without destructors.
EXPORT __attribute__((noreturn)) void _exit(int code) {
  fake::write_report();
  for (;;) syscall(SYS_exit_group, code);
}
