// The configuration of the tile registers that all our products share. For .cpp files compiled with AMX.
#pragma once

#include <cstdint>

namespace trireme::ops {

/// Rows and bytes a row of a tile register: 16 x 16 floats, 16 x 32 numbers of bf16, or 16 pairs of rows by 16 columns
/// of them.
inline constexpr int64_t kTileRows = 16, kTileRowBytes = 64;

/// Intel's manual, volume 2, LDTILECFG.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {kTileRowBytes, kTileRowBytes, kTileRowBytes, kTileRowBytes,
                            kTileRowBytes, kTileRowBytes, kTileRowBytes, kTileRowBytes};
  uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows};
};
static_assert(sizeof(TileConfiguration) == 64);
inline constexpr TileConfiguration kTileConfiguration;

}  // namespace trireme::ops
