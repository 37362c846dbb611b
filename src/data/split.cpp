#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/split.h"

#include <pcre2.h>

#include <new>

#include "base/error.h"
#include "data/split_ascii.h"

namespace trireme::data {
namespace {

// A pattern with a name is spelled twice. PCRE2's \s counts U+180E, which Unicode took out of White_Space in 6.3 and
// other engines do not match, so what PCRE2 compiles spells the class out.
struct Named {
  std::string_view name;
  std::string_view expression;
  std::string_view for_pcre2;
};
#define SPACE R"(\p{Z}\t-\r\x{85})"
constexpr Named kCl100k{
    "cl100k",
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^)re" SPACE
    R"re(\p{L}\p{N}]+[\r\n]*|[)re" SPACE R"re(]*[\r\n]+|[)re" SPACE R"re(]+(?![^)re" SPACE R"re(])|[)re" SPACE
    R"re(]+)re"};
constexpr Named kGpt2{"gpt2", R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re",
                      R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)re" SPACE R"re(\p{L}\p{N}]+|[)re" SPACE
                      R"re(]+(?![^)re" SPACE R"re(])|[)re" SPACE R"re(]+)re"};
#define CONTRACTION R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?)re"
#define UPPER R"re([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])re"
#define LOWER R"re([\p{Ll}\p{Lm}\p{Lo}\p{M}])re"
#define O200K_WORDS                                                                                        \
  R"re([^\r\n\p{L}\p{N}]?)re" UPPER "*" LOWER "+" CONTRACTION R"re(|[^\r\n\p{L}\p{N}]?)re" UPPER "+" LOWER \
  "*" CONTRACTION
constexpr Named kO200k{"o200k", O200K_WORDS R"re(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
                       O200K_WORDS R"re(|\p{N}{1,3}| ?[^)re" SPACE R"re(\p{L}\p{N}]+[\r\n/]*|[)re" SPACE
                                   R"re(]*[\r\n]+|[)re" SPACE R"re(]+(?![^)re" SPACE R"re(])|[)re" SPACE R"re(]+)re"};
#undef O200K_WORDS
#undef LOWER
#undef UPPER
#undef CONTRACTION
#undef SPACE

std::string error_text(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

constexpr size_t kStackStart = 32 << 10, kStackMost = 64 << 20;  // bytes, for patterns that recurse over long pieces

}  // namespace

struct Splitter::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

struct Splitter::Scratch::Buffers {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kStackStart, kStackMost, nullptr);
  Buffers() {
    if (match == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Buffers() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
};

Splitter::Scratch::Scratch() : buffers_(std::make_unique<Buffers>()) {}
Splitter::Scratch::~Scratch() = default;

Splitter::Splitter(const std::string& pattern, Way way) : kind_(Kind::custom), way_(way), expression_(pattern) {
  std::string_view source = pattern;
  for (const auto& [kind, named] :
       {std::pair{Kind::cl100k, kCl100k}, std::pair{Kind::gpt2, kGpt2}, std::pair{Kind::o200k, kO200k}}) {
    if (pattern != named.name && pattern != named.expression) continue;
    kind_ = kind;
    expression_ = named.expression;
    source = named.for_pcre2;
  }
  if (source.empty()) throw InputError("the split pattern is empty; use cl100k, gpt2, o200k or a regular expression");
  const auto compiled = std::make_shared<Compiled>();
  int code = 0;
  PCRE2_SIZE at = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, nullptr);
  if (compiled->code == nullptr) {
    throw_input("the split pattern `{}` is neither cl100k, gpt2, o200k nor a regular expression: {} at character {}",
                pattern, error_text(code), at);
  }
  // Where code may not be made at run time this fails, and pcre2_match interprets: the same matches, slower.
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  compiled_ = compiled;
}

size_t Splitter::piece_end(std::string_view stretch, size_t begin, Scratch& scratch) const {
  if (way_ == Way::fast) {
    size_t end = 0;
    if (kind_ == Kind::cl100k) end = ascii_piece_end_cl100k(stretch, begin);
    if (kind_ == Kind::gpt2) end = ascii_piece_end_gpt2(stretch, begin);
    if (kind_ == Kind::o200k) end = ascii_piece_end_o200k(stretch, begin);
    if (end != 0) return end;
  }
  return matched_end(stretch, begin, scratch);
}

size_t Splitter::matched_end(std::string_view stretch, size_t begin, Scratch& scratch) const {
  const auto& buffers = *scratch.buffers_;
  const int found = pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(stretch.data()), stretch.size(), begin,
                                PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, buffers.match, buffers.context);
  if (found == PCRE2_ERROR_NOMATCH) return stretch.size();
  if (found < 0) {
    throw_input("the split pattern `{}` cannot be matched {} bytes into a text: {}; use cl100k, gpt2 or a simpler one",
                expression_, begin, error_text(found));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(buffers.match);
  // \K can put the start behind the end, or before `begin`: never step back.
  if (bounds[0] > begin) return bounds[0];
  return bounds[1] > begin ? bounds[1] : stretch.size();
}

}  // namespace trireme::data
