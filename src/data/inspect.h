// What a person wants to see of a prepared data set: summary, table of documents, a document's or a sample's text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/dataset.h"

namespace trireme::data {

/// Summary, shards, and the first `rows` documents.
std::string describe(const Dataset& dataset, int64_t rows);
/// Header line and decoded text of one document. Throws InputError for an index that is not there.
std::string describe_document(const Dataset& dataset, int64_t index);
/// Header line and decoded text of tokens [sample * seq_len, sample * seq_len + seq_len], as the loader cuts them.
std::string describe_sample(const Dataset& dataset, int64_t sample, int64_t seq_len);

}  // namespace trireme::data
