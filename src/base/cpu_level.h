// Instruction-set levels for which kernels are compiled, and the one that this process uses.
#pragma once

namespace trireme {

/// portable: any CPU that the build is for. avx2: x86-64-v3. avx512: x86-64-v4. avx512_bf16:
/// that and conversions to bfloat16, as every CPU with AMX has.
enum class CpuLevel { portable, avx2, avx512, avx512_bf16 };

/// The best level of this CPU, or the one named by TRIREME_KERNELS=portable|avx2|avx512|avx512_bf16. Chosen once.
/// Throws InputError for a name that is not known, and for a level that this CPU does not have.
CpuLevel cpu_level();
const char* name_of(CpuLevel level);

}  // namespace trireme
