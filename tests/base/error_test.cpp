// Messages that users see: all faults at once, reasons in words, and the nearest word.
#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace trireme {
namespace {

TEST(InputError, HoldsAllFaultsALineEach) {
  const InputError one("only this");
  EXPECT_STREQ(one.what(), "only this");
  EXPECT_THAT(one.faults(), testing::ElementsAre("only this"));
  const InputError two(std::vector<std::string>{"first", "second"});
  EXPECT_STREQ(two.what(), "2 problems:\n  - first\n  - second");
  EXPECT_EQ(two.faults().size(), 2u);
  EXPECT_EQ(two.code(), ExitCode::bad_input);
}

TEST(Errors, HaveTheirExitCodes) {
  EXPECT_EQ(static_cast<int>(InputError("x").code()), 2);
  EXPECT_EQ(static_cast<int>(WorkerError("x").code()), 3);
  EXPECT_EQ(static_cast<int>(InternalError("x").code()), 1);
}

TEST(ThrowErrno, SaysCallPathAndReasonAndWhoseFaultItIs) {
  const struct {
    const char* name;
    int error;
    bool users;
    const char* words;
  } rows[] = {
      {"missing", ENOENT, true, "No such file"},    {"no permission", EACCES, true, "Permission denied"},
      {"disk full", ENOSPC, true, "No space"},      {"read-only", EROFS, true, "Read-only"},
      {"input/output", EIO, false, "output error"}, {"out of memory", ENOMEM, false, "memory"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    try {
      throw_errno("write", "some/file", row.error);
    } catch (const Error& error) {
      EXPECT_EQ(dynamic_cast<const InputError*>(&error) != nullptr, row.users);
      EXPECT_THAT(error.what(), testing::StartsWith("cannot write some/file: "));
      EXPECT_THAT(error.what(), testing::HasSubstr(row.words));
    }
  }
}

TEST(Nearest, FindsASlipAndNothingFarAway) {
  const std::vector<std::string> words = {"steps", "seq_len", "micro_batch_size", "lr"};
  const struct {
    const char *word, *expected;
  } rows[] = {{"step", "steps"},
              {"seqlen", "seq_len"},
              {"micro_batchsize", "micro_batch_size"},
              {"microbatch_size", "micro_batch_size"},
              {"stpes", "steps"},
              {"rl", "lr"},
              {"l", "lr"},
              {"banana", ""},
              {"", ""}};
  for (const auto& row : rows) {
    EXPECT_EQ(nearest(row.word, words), row.expected) << row.word;
  }
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Check, FailureIsAnInternalErrorWithTheValues) {
  const int found = 3;
  try {
    TRIREME_CHECK(found == 4, "found {}", found);
    FAIL() << "no error";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("found 3"));
    EXPECT_THAT(error.what(), testing::HasSubstr("found == 4"));
  }
}

}  // namespace
}  // namespace trireme
