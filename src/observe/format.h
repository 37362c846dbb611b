// Numbers as a person reads them. Names of units follow SI (k, M, G: powers of 1000) and IEC (KiB, MiB, GiB: of 1024).
#pragma once

#include <cstdint>
#include <string>

namespace trireme::observe {

/// 1234567 -> "1,234,567".
std::string thousands(int64_t value);
/// Three significant digits with a unit: 41234 -> "41.2k", 2.1e12 -> "2.10T", 950 -> "950". "n/a" for NaN and infinity.
std::string short_number(double value);
/// "512 B", "1.25 KiB", "1.2 GiB" (three significant digits).
std::string short_bytes(int64_t bytes);
/// A span of time in its two largest units: "4m12s", "2h05m", "3d04h", "38s", "0.52s". "unknown" for what is negative
/// or not finite.
std::string short_duration(double seconds);
/// "38.1%"; "n/a" when it is not finite.
std::string percent(double share, int digits = 1);

}  // namespace trireme::observe
