#define TRIREME_REDUCE_NAME reduce_baseline
#include "comm/reduce_kernels.inl"
