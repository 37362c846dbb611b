#define TRIREME_REDUCE_NAME reduce_avx2
#include "comm/reduce_kernels.inl"
