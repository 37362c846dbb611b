// English-like text made from nothing: what the smallest example trains on, so that it needs no download.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::data {

/// Document `index` of the stream of `seed`: a few paragraphs of sentences from a small grammar, about 2 KB, ASCII. A
/// pure function of its arguments. There is something to learn in it: spelling, grammar, and words that keep company.
std::string synthetic_document(uint64_t seed, int64_t index);

/// Writes FOLDER/00000.txt and so on, documents 0..documents-1 of `seed`. 500 documents are about 1 MB. Text to be held
/// out takes another seed and another folder. Existing files of these names are replaced; throws InputError when it
/// cannot write.
void write_synthetic_text(const std::filesystem::path& folder, int64_t documents, uint64_t seed);

}  // namespace trireme::data
