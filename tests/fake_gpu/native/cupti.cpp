// CUPTI, as far as Kineto asks for it: kernels, copies and sets from the streams' clocks, with the calls that launched
// them and the operators that these belong to.
#include "device.h"

#include <cupti.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#if CUPTI_API_VERSION < 130200
using CUpti_ActivityKernel11 = CUpti_ActivityKernel10;  // the newest of CUDA 13.0; fields are only ever added
#endif

namespace {

union Record {
  CUpti_Activity any;
  CUpti_ActivityKernel11 kernel;
  CUpti_ActivityMemcpy6 copy;
  CUpti_ActivityMemset4 set;
  CUpti_ActivityAPI call;
  CUpti_ActivityExternalCorrelation external;
};

// The calls by the numbers of CUPTI's callbacks (cupti_runtime_cbid.h).
constexpr int kLaunchKernel = 211, kMemcpyAsync = 41, kMemsetAsync = 51;

std::mutex lock;
std::vector<Record> records;
bool enabled[CUPTI_ACTIVITY_KIND_COUNT];
thread_local std::map<int, std::vector<uint64_t>> operators;  // ids of what is running, by kind
CUpti_BuffersCallbackRequestFunc request_buffer;
CUpti_BuffersCallbackCompleteFunc complete_buffer;
uint8_t* first_buffer;  // Kineto flushes only if a buffer has been asked for
size_t first_buffer_bytes;

// Kineto's own clock runs beside ours: times are converted when they are handed over.
CUpti_TimestampCallbackFunc timestamp;
int64_t started_ns;
uint64_t started_stamp;

size_t bytes_of(const Record& record) {
  size_t bytes = sizeof record.kernel;
  if (record.any.kind == CUPTI_ACTIVITY_KIND_MEMCPY) bytes = sizeof record.copy;
  if (record.any.kind == CUPTI_ACTIVITY_KIND_MEMSET) bytes = sizeof record.set;
  if (record.any.kind == CUPTI_ACTIVITY_KIND_RUNTIME) bytes = sizeof record.call;
  if (record.any.kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) bytes = sizeof record.external;
  return (bytes + 7) / 8 * 8;
}

// What the three kinds of work on a device have alike.
template <class Activity>
void describe(Activity& activity, int64_t begin, int64_t end, const fake::Stream* stream, uint32_t correlation) {
  activity.start = begin;
  activity.end = end;
  activity.deviceId = fake::device_of(stream);
  activity.contextId = fake::device_of(stream) + 1;
  activity.streamId = fake::number_of(stream) + 7;  // CUPTI's default stream is 7
  activity.correlationId = correlation;
}

Record work_record(const char* name, int64_t begin, int64_t end, const fake::Stream* stream, fake::Work work,
                   size_t bytes, dim3 grid, dim3 block, uint32_t correlation) {
  Record record{};
  if (work == fake::Work::kKernel) {
    record.kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    describe(record.kernel, begin, end, stream, correlation);
    record.kernel.completed = end;
    record.kernel.gridX = grid.x, record.kernel.gridY = grid.y, record.kernel.gridZ = grid.z;
    record.kernel.blockX = block.x, record.kernel.blockY = block.y, record.kernel.blockZ = block.z;
    record.kernel.registersPerThread = 32;
    record.kernel.name = name;
  } else if (work == fake::Work::kMemset) {
    record.set.kind = CUPTI_ACTIVITY_KIND_MEMSET;
    describe(record.set, begin, end, stream, correlation);
    record.set.bytes = bytes;
  } else {
    record.copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    describe(record.copy, begin, end, stream, correlation);
    record.copy.bytes = bytes;
    record.copy.copyKind = work == fake::Work::kCopyToDevice ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                           : work == fake::Work::kCopyToHost ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                                                             : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
  }
  return record;
}

Record call_record(int callback, int64_t begin, int64_t end, uint32_t correlation) {
  Record record{};
  record.call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  record.call.cbid = callback;
  record.call.start = begin;
  record.call.end = end;
  record.call.processId = getpid();
  record.call.threadId = uint32_t(syscall(SYS_gettid));
  record.call.correlationId = correlation;
  return record;
}

uint64_t stamp(uint64_t ns) {
  if (!timestamp) return ns;
  int64_t now = fake::now_ns();
  double rate = now > started_ns ? double(timestamp() - started_stamp) / double(now - started_ns) : 1;
  return started_stamp + uint64_t(double(int64_t(ns) - started_ns) * rate);
}

void convert_times(Record& record) {
  auto convert = [](auto& activity) {
    activity.start = stamp(activity.start);
    activity.end = stamp(activity.end);
  };
  switch (record.any.kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return;
    case CUPTI_ACTIVITY_KIND_MEMCPY: return convert(record.copy);
    case CUPTI_ACTIVITY_KIND_MEMSET: return convert(record.set);
    case CUPTI_ACTIVITY_KIND_RUNTIME: return convert(record.call);
    default: convert(record.kernel); record.kernel.completed = record.kernel.end;
  }
}

}  // namespace

namespace fake {

bool recording() { return enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] || enabled[CUPTI_ACTIVITY_KIND_RUNTIME]; }

void record(const char* name, int64_t called, int64_t begin, int64_t end, const Stream* stream, Work work, size_t bytes,
            dim3 grid, dim3 block) {
  static uint32_t correlations = 0;
  std::lock_guard<std::mutex> guard(lock);
  uint32_t correlation = ++correlations;
  auto keep = [](const Record& record) {
    if (enabled[record.any.kind]) records.push_back(record);
  };
  keep(work_record(name, begin, end, stream, work, bytes, grid, block, correlation));
  for (auto& [kind, ids] : operators) {
    Record external{};
    external.external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    external.external.externalKind = CUpti_ExternalCorrelationKind(kind);
    external.external.correlationId = correlation;
    if (!ids.empty()) external.external.externalId = ids.back(), keep(external);
  }
  int callback = work == Work::kKernel ? kLaunchKernel : work == Work::kMemset ? kMemsetAsync : kMemcpyAsync;
  keep(call_record(callback, called, now_ns(), correlation));
  size_t most_records = 0;
  if (!first_buffer && request_buffer) request_buffer(&first_buffer, &first_buffer_bytes, &most_records);
}

}  // namespace fake

EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                  CUpti_BuffersCallbackCompleteFunc complete) {
  request_buffer = request;
  complete_buffer = complete;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  timestamp = clock;
  started_ns = fake::now_ns();
  started_stamp = clock();
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  enabled[kind] = true;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  enabled[kind] = false;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
  operators[kind].push_back(id);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* id) {
  auto& ids = operators[kind];
  if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (id) *id = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityFlushAll(uint32_t) {
  std::vector<Record> flushed;
  uint8_t* buffer;
  size_t size, most_records = 0, used = 0;
  {
    std::lock_guard<std::mutex> guard(lock);
    flushed.swap(records);
    buffer = first_buffer, size = first_buffer_bytes;
    if (!flushed.empty()) first_buffer = nullptr;
  }
  if (flushed.empty() || !request_buffer) return CUPTI_SUCCESS;
  for (Record& record : flushed) {
    convert_times(record);
    if (!buffer || used + bytes_of(record) > size) {
      if (buffer) complete_buffer(nullptr, 0, buffer, size, used);
      request_buffer(&buffer, &size, &most_records);
      used = 0;
      if (!buffer) return CUPTI_SUCCESS;
    }
    memcpy(buffer + used, &record, bytes_of(record));
    used += bytes_of(record);
  }
  complete_buffer(nullptr, 0, buffer, size, used);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t bytes, CUpti_Activity** record) {
  uint8_t* next = buffer;
  if (*record) next = reinterpret_cast<uint8_t*>(*record) + bytes_of(*reinterpret_cast<Record*>(*record));
  if (next >= buffer + bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain, uint32_t callback, const char** name) {
  *name = callback == kLaunchKernel  ? "cudaLaunchKernel_v7000"
          : callback == kMemcpyAsync ? "cudaMemcpyAsync_v3020"
          : callback == kMemsetAsync ? "cudaMemsetAsync_v3020"
                                     : "cudaSomething_v1";
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetVersion(uint32_t* version) {
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
  *text = "a result of the fake CUPTI";
  return CUPTI_SUCCESS;
}

// ---- what needs no answer but success

EXPORT CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t*, void*) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* records) {
  *records = 0;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc, void*) {
  static char any;
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&any);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) { return CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiFinalize() { return CUPTI_SUCCESS; }
