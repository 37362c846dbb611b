#define TRIREME_REDUCE_NAME reduce_avx512
#include "comm/reduce_kernels.inl"
