// Stands in for libnvidia-ml.so.1, which PyTorch opens by name: a device that answers, with nothing to say.

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = reinterpret_cast<void*>(1);
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType() { return 3; /* not supported */ }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return 3; }
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV() { return 0; /* leaves the state at 'no fabric' */ }
}
