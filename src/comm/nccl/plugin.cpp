// The plug-in libtrireme_nccl.so: the functions of table.h over NCCL and the CUDA runtime. tools/build-nccl.sh builds
// it; there is no code for the device in it, so no nvcc is needed.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "comm/nccl/table.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "communicators that do not block need NCCL 2.18");
static_assert(NCCL_UNIQUE_ID_BYTES == trireme::comm::nccl_id_bytes);

namespace {

using trireme::comm::nccl_done;
using trireme::comm::nccl_in_progress;
using trireme::comm::NcclInteger;
using trireme::comm::NcclOp;
using trireme::comm::NcclTable;

// Codes of NCCL are small; those of the CUDA runtime follow them.
constexpr int first_cuda_code = 10'000;

int code_of(ncclResult_t result) {
  return result == ncclSuccess ? nccl_done : result == ncclInProgress ? nccl_in_progress : static_cast<int>(result);
}
int code_of(cudaError_t result) {
  return result == cudaSuccess ? nccl_done : first_cuda_code + static_cast<int>(result);
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }
ncclComm_t comm_of(void* comm) { return static_cast<ncclComm_t>(comm); }

ncclDataType_t type_of(NcclInteger type) {
  return type == NcclInteger::u8 ? ncclUint8 : type == NcclInteger::i32 ? ncclInt32 : ncclInt64;
}
ncclRedOp_t op_of(NcclOp op) { return op == NcclOp::sum ? ncclSum : op == NcclOp::max ? ncclMax : ncclMin; }

int library(char* text, int capacity) {
  int nccl = 0, runtime = 0, driver = 0;
  const ncclResult_t result = ncclGetVersion(&nccl);
  if (result != ncclSuccess) return code_of(result);
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  std::snprintf(text, static_cast<size_t>(capacity), "NCCL %d.%d.%d, CUDA %d.%d, driver for CUDA %d.%d", nccl / 10000,
                nccl / 100 % 100, nccl % 100, runtime / 1000, runtime / 10 % 100, driver / 1000, driver / 10 % 100);
  return nccl_done;
}

void error_text(int code, char* text, int capacity) {
  const auto size = static_cast<size_t>(capacity);
  if (code >= first_cuda_code) {
    std::snprintf(text, size, "CUDA: %s", cudaGetErrorString(static_cast<cudaError_t>(code - first_cuda_code)));
    return;
  }
  const char* more = ncclGetLastError(nullptr);
  std::snprintf(text, size, "NCCL: %s%s%s", ncclGetErrorString(static_cast<ncclResult_t>(code)),
                more != nullptr && *more != '\0' ? ": " : "", more != nullptr ? more : "");
}

int use_device(int index) { return code_of(cudaSetDevice(index)); }

int make_event(void** event) {
  cudaEvent_t made = nullptr;
  const cudaError_t result = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
  *event = made;
  return code_of(result);
}
void free_event(void* event) { cudaEventDestroy(event_of(event)); }
int record(void* event, void* stream) { return code_of(cudaEventRecord(event_of(event), stream_of(stream))); }
int wait_event(void* stream, void* event) {
  return code_of(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}
int query(void* event, int* done) {
  const cudaError_t result = cudaEventQuery(event_of(event));
  *done = result == cudaSuccess ? 1 : 0;
  if (result != cudaErrorNotReady) return code_of(result);
  static_cast<void>(cudaGetLastError());  // it counts as an error that the next look for one would find
  return nccl_done;
}
int copy(void* to, const void* from, int64_t bytes, void* stream) {
  return code_of(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
}
int make_pinned(void** memory, int64_t bytes) {
  return code_of(cudaHostAlloc(memory, static_cast<size_t>(bytes), cudaHostAllocPortable));
}
void free_pinned(void* memory) { cudaFreeHost(memory); }

int make_id(unsigned char* id) {
  ncclUniqueId made;
  const ncclResult_t result = ncclGetUniqueId(&made);
  std::memcpy(id, made.internal, sizeof made.internal);
  return code_of(result);
}

int make_comm(const unsigned char* id, int rank, int size, void** comm) {
  ncclUniqueId given;
  std::memcpy(given.internal, id, sizeof given.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&made, size, given, rank, &config);
  *comm = made;
  return code_of(result);
}

int state(void* comm) {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_of(comm), &result);
  return code_of(asked != ncclSuccess ? asked : result);
}

void abort_comm(void* comm) { ncclCommAbort(comm_of(comm)); }

// ncclCommDestroy() frees at once what a peer may still read, unless ncclCommFinalize() has ended before.
void free_comm(void* comm) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(5);
  int ended = code_of(ncclCommFinalize(comm_of(comm)));
  while (ended == nccl_in_progress && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ended = state(comm);
  }
  if (ended == nccl_done)
    ncclCommDestroy(comm_of(comm));
  else
    ncclCommAbort(comm_of(comm));
}

int start_group() { return code_of(ncclGroupStart()); }
int end_group() { return code_of(ncclGroupEnd()); }

int send(const void* data, int64_t bytes, int to, void* comm, void* stream) {
  return code_of(ncclSend(data, static_cast<size_t>(bytes), ncclUint8, to, comm_of(comm), stream_of(stream)));
}
int receive(void* data, int64_t bytes, int from, void* comm, void* stream) {
  return code_of(ncclRecv(data, static_cast<size_t>(bytes), ncclUint8, from, comm_of(comm), stream_of(stream)));
}
int all_gather(const void* input, void* output, int64_t bytes, void* comm, void* stream) {
  return code_of(ncclAllGather(input, output, static_cast<size_t>(bytes), ncclUint8, comm_of(comm), stream_of(stream)));
}
int broadcast(void* data, int64_t bytes, int root, void* comm, void* stream) {
  return code_of(
      ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclUint8, root, comm_of(comm), stream_of(stream)));
}
int all_reduce(const void* input, void* output, int64_t count, NcclInteger type, NcclOp op, void* comm, void* stream) {
  return code_of(ncclAllReduce(input, output, static_cast<size_t>(count), type_of(type), op_of(op), comm_of(comm),
                               stream_of(stream)));
}
int reduce(const void* input, void* output, int64_t count, NcclInteger type, NcclOp op, int root, void* comm,
           void* stream) {
  return code_of(ncclReduce(input, output, static_cast<size_t>(count), type_of(type), op_of(op), root, comm_of(comm),
                            stream_of(stream)));
}

constexpr NcclTable table = {
    .version = NcclTable::current_version,
    .host_memory = 0,
    .library = library,
    .error_text = error_text,
    .use_device = use_device,
    .make_event = make_event,
    .free_event = free_event,
    .record = record,
    .wait_event = wait_event,
    .query = query,
    .copy = copy,
    .make_pinned = make_pinned,
    .free_pinned = free_pinned,
    .make_stream = nullptr,
    .free_stream = nullptr,
    .run_on = nullptr,
    .make_id = make_id,
    .make_comm = make_comm,
    .state = state,
    .abort_comm = abort_comm,
    .free_comm = free_comm,
    .start_group = start_group,
    .end_group = end_group,
    .send = send,
    .receive = receive,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .all_reduce = all_reduce,
    .reduce = reduce,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const NcclTable* trireme_nccl_table() { return &table; }
