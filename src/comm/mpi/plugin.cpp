// The plug-in libtrireme_mpi.so: the functions of table.h over the MPI library that it was compiled against.
// The C++ bindings that MPI 3 has removed would ask for a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "comm/mpi/table.h"

namespace {

using trireme::comm::MpiComm;
using trireme::comm::MpiInteger;
using trireme::comm::MpiOp;
using trireme::comm::MpiRequest;
using trireme::comm::MpiTable;

static_assert(sizeof(MPI_Comm) <= sizeof(MpiComm) && sizeof(MPI_Request) <= sizeof(MpiRequest));

MPI_Comm comm_of(const MpiComm* comm) {
  MPI_Comm value;
  std::memcpy(&value, comm->bytes, sizeof value);
  return value;
}

void keep(MpiComm* comm, MPI_Comm value) { std::memcpy(comm->bytes, &value, sizeof value); }

int keep(MpiRequest* request, MPI_Request value, int code) {
  std::memcpy(request->bytes, &value, sizeof value);
  return code;
}

MPI_Datatype type_of(int width) {
  switch (width) {
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    case 8:
      return MPI_UINT64_T;
    default:
      return MPI_BYTE;
  }
}

MPI_Datatype type_of(MpiInteger type) {
  switch (type) {
    case MpiInteger::u8:
      return MPI_UINT8_T;
    case MpiInteger::i32:
      return MPI_INT32_T;
    case MpiInteger::i64:
      return MPI_INT64_T;
    case MpiInteger::u64:
      return MPI_UINT64_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op op_of(MpiOp op) { return op == MpiOp::sum ? MPI_SUM : op == MpiOp::max ? MPI_MAX : MPI_MIN; }

int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int initialize(int* rank, int* size, int* threads_at_once) {
  int there = 0;
  int level = MPI_THREAD_SINGLE;
  int code = MPI_Initialized(&there);
  if (code == MPI_SUCCESS && there == 0) code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  if (code == MPI_SUCCESS && there != 0) code = MPI_Query_thread(&level);
  if (code != MPI_SUCCESS) return code;
  *threads_at_once = level == MPI_THREAD_MULTIPLE ? 1 : 0;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return code != MPI_SUCCESS ? code : MPI_Comm_size(MPI_COMM_WORLD, size);
}

int finalize() {
  int over = 0;
  MPI_Finalized(&over);
  return over != 0 ? MPI_SUCCESS : MPI_Finalize();
}

int library(char* text, int capacity) {
  char whole[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  const int code = MPI_Get_library_version(whole, &length);
  if (code != MPI_SUCCESS) return code;
  const size_t kept = std::min(std::strcspn(whole, "\n"), static_cast<size_t>(capacity - 1));
  std::memcpy(text, whole, kept);
  text[kept] = '\0';
  return code;
}

void error_text(int code, char* text, int capacity) {
  char whole[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, whole, &length);
  std::strncpy(text, whole, static_cast<size_t>(capacity - 1));
  text[capacity - 1] = '\0';
}

int duplicate_world(MpiComm* comm) {
  MPI_Comm made = MPI_COMM_NULL;
  const int code = MPI_Comm_dup(MPI_COMM_WORLD, &made);
  if (code != MPI_SUCCESS) return code;
  keep(comm, made);
  return MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
}

int create_group(const MpiComm* of, const int* ranks, int count, int tag, MpiComm* comm) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  int code = MPI_Comm_group(comm_of(of), &all);
  if (code != MPI_SUCCESS) return code;
  code = MPI_Group_incl(all, count, ranks, &some);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(comm_of(of), some, tag, &made);
  if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
  MPI_Group_free(&all);
  if (code != MPI_SUCCESS) return code;
  keep(comm, made);
  return MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
}

int free_comm(MpiComm* comm) {
  MPI_Comm value = comm_of(comm);
  const int code = MPI_Comm_free(&value);
  keep(comm, value);
  return code;
}

int send(const void* data, int count, int width, int to, int tag, const MpiComm* comm, MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, count, type_of(width), to, tag, comm_of(comm), &made);
  return keep(request, made, code);
}

int receive(void* data, int count, int width, int from, int tag, const MpiComm* comm, MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, count, type_of(width), from, tag, comm_of(comm), &made);
  return keep(request, made, code);
}

int probe(int tag, const MpiComm* comm, int* found, int* from, int* bytes) {
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_of(comm), found, &status);
  if (code != MPI_SUCCESS || *found == 0) return code;
  *from = status.MPI_SOURCE;
  return MPI_Get_count(&status, MPI_BYTE, bytes);
}

int take(void* data, int bytes, int from, int tag, const MpiComm* comm) {
  return MPI_Recv(data, bytes, MPI_BYTE, from, tag, comm_of(comm), MPI_STATUS_IGNORE);
}

int all_gather(void* data, const int* counts, const int* starts, int width, const MpiComm* comm, MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code =
      MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, starts, type_of(width), comm_of(comm), &made);
  return keep(request, made, code);
}

int gather(void* data, int count, const int* counts, const int* starts, int width, int root, const MpiComm* comm,
           MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const MPI_Datatype type = type_of(width);
  const bool here = rank_in(comm_of(comm)) == root;
  const int code =
      here ? MPI_Igatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, starts, type, root, comm_of(comm), &made)
           : MPI_Igatherv(data, count, type, nullptr, nullptr, nullptr, type, root, comm_of(comm), &made);
  return keep(request, made, code);
}

int scatter(void* data, int count, const int* counts, const int* starts, int width, int root, const MpiComm* comm,
            MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const MPI_Datatype type = type_of(width);
  const bool here = rank_in(comm_of(comm)) == root;
  const int code =
      here ? MPI_Iscatterv(data, counts, starts, type, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, comm_of(comm), &made)
           : MPI_Iscatterv(nullptr, nullptr, nullptr, type, data, count, type, root, comm_of(comm), &made);
  return keep(request, made, code);
}

int broadcast(void* data, int count, int width, int root, const MpiComm* comm, MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code = MPI_Ibcast(data, count, type_of(width), root, comm_of(comm), &made);
  return keep(request, made, code);
}

int all_reduce(void* data, int count, MpiInteger type, MpiOp op, const MpiComm* comm, MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int code = MPI_Iallreduce(MPI_IN_PLACE, data, count, type_of(type), op_of(op), comm_of(comm), &made);
  return keep(request, made, code);
}

int reduce(void* data, int count, MpiInteger type, MpiOp op, int root, const MpiComm* comm, MpiRequest* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const bool here = rank_in(comm_of(comm)) == root;
  const int code = MPI_Ireduce(here ? MPI_IN_PLACE : data, here ? data : nullptr, count, type_of(type), op_of(op), root,
                               comm_of(comm), &made);
  return keep(request, made, code);
}

int test(MpiRequest* request, int* done) {
  MPI_Request value;
  std::memcpy(&value, request->bytes, sizeof value);
  const int code = MPI_Test(&value, done, MPI_STATUS_IGNORE);
  return keep(request, value, code);
}

constexpr MpiTable table = {
    MpiTable::current_version,
    initialize,
    finalize,
    library,
    error_text,
    duplicate_world,
    create_group,
    free_comm,
    send,
    receive,
    probe,
    take,
    all_gather,
    gather,
    scatter,
    broadcast,
    all_reduce,
    reduce,
    test,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const MpiTable* trireme_mpi_table() { return &table; }
