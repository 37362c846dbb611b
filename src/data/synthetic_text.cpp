#include "data/synthetic_text.h"

#include <fcntl.h>

#include <array>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"

namespace trireme::data {
namespace {

using Words = std::span<const std::string_view>;
template <size_t count>
using List = std::array<std::string_view, count>;

/// What a document is about. Its words keep to it, so that the start of a text tells something about its end.
struct Scene {
  List<12> places, people, things;
  List<12> deeds;      ///< transitive, past tense
  List<12> qualities;  ///< adjectives
};

constexpr std::array<Scene, 5> kScenes{{
    {{"harbour", "quay", "lighthouse", "island", "ship", "bay", "channel", "dock", "boathouse", "cove", "reef",
      "open sea"},
     {"captain", "sailor", "pilot", "fisherman", "helmsman", "passenger", "boatswain", "trader", "rower", "cook",
      "shipwright", "keeper"},
     {"oar", "sail", "anchor", "rope", "lantern", "chart", "net", "mast", "compass", "barrel", "rudder", "flag"},
     {"hoisted", "lowered", "mended", "carried", "tied", "lost", "pulled", "cleaned", "steered", "watched", "dropped",
      "found"},
     {"wet", "salty", "heavy", "wooden", "broken", "distant", "foreign", "calm", "stormy", "sturdy", "narrow",
      "weathered"}},
    {{"village", "field", "mill", "barn", "orchard", "market", "meadow", "farmhouse", "stable", "garden", "hill",
      "river"},
     {"farmer", "miller", "baker", "shepherd", "blacksmith", "weaver", "neighbour", "gardener", "carpenter", "widow",
      "beekeeper", "carter"},
     {"plough", "basket", "loaf", "wheel", "fence", "apple", "horse", "sack", "ladder", "cheese", "hammer", "cart"},
     {"sold", "bought", "baked", "planted", "gathered", "fed", "built", "painted", "shared", "weighed", "repaired",
      "hid"},
     {"ripe", "golden", "muddy", "old", "plain", "generous", "hungry", "rusty", "sweet", "green", "patient", "early"}},
    {{"library", "school", "laboratory", "tower", "classroom", "archive", "museum", "workshop", "observatory", "study",
      "lecture hall", "university"},
     {"teacher", "student", "scholar", "librarian", "astronomer", "printer", "inventor", "translator", "clerk",
      "chemist", "professor", "apprentice"},
     {"book", "letter", "lamp", "clock", "map", "telescope", "pencil", "theory", "drawing", "notebook", "question",
      "mirror"},
     {"read", "copied", "explained", "measured", "studied", "solved", "wrote", "doubted", "proved", "compared",
      "collected", "forgot"},
     {"careful", "curious", "ancient", "exact", "difficult", "learned", "bright", "quiet", "precise", "famous",
      "simple", "mysterious"}},
    {{"city", "square", "station", "theatre", "bridge", "street", "hotel", "bakery", "courtyard", "factory", "tavern",
      "park"},
     {"driver", "actor", "mayor", "waiter", "tailor", "singer", "painter", "doctor", "guard", "shopkeeper", "musician",
      "stranger"},
     {"ticket", "coat", "violin", "newspaper", "key", "umbrella", "coin", "window", "bell", "table", "suitcase",
      "song"},
     {"opened", "closed", "played", "borrowed", "returned", "praised", "noticed", "hung", "ordered", "counted",
      "polished", "bargained for"},
     {"crowded", "modern", "elegant", "noisy", "cheap", "fashionable", "empty", "busy", "proud", "polite", "strange",
      "tired"}},
    {{"forest", "mountain", "cave", "valley", "camp", "waterfall", "path", "cliff", "glacier", "clearing", "lake",
      "summit"},
     {"hunter", "guide", "traveller", "hermit", "climber", "ranger", "woodcutter", "trapper", "pilgrim", "scout",
      "messenger", "geologist"},
     {"axe", "tent", "fire", "stone", "bow", "trail", "blanket", "feather", "bridge of rope", "pack", "torch", "horn"},
     {"followed", "climbed over", "lit", "carved", "buried", "crossed", "chopped", "sharpened", "feared", "reached",
      "guarded", "discovered"},
     {"steep", "silent", "wild", "frozen", "dark", "lonely", "ragged", "swift", "deep", "brave", "misty", "hidden"}},
}};

constexpr List<24> kNames{"Anna",  "Boris",  "Clara", "Daniel", "Edith", "Felix",  "Greta",  "Henry",
                          "Irene", "Jonas",  "Karen", "Louis",  "Maria", "Niels",  "Olga",   "Peter",
                          "Ruth",  "Samuel", "Tilda", "Ulrich", "Vera",  "Walter", "Yvonne", "Zeno"};
constexpr List<14> kTimes{"In the morning",     "At noon",          "That evening",     "Before sunrise",
                          "After the rain",     "On the third day", "Late in the year", "During the winter",
                          "A week later",       "Every summer",     "Soon afterwards",  "Long ago",
                          "By the first light", "When night fell"};
constexpr List<12> kManners{"slowly", "carefully", "at once",    "without a word", "with great care", "in a hurry",
                            "gladly", "in secret", "once again", "by mistake",     "with a smile",    "as usual"};
constexpr List<10> kSayings{"It will be finished tomorrow",    "Nobody has ever done it better",
                            "We should have left earlier",     "There is still enough for all",
                            "I do not believe a word of it",   "You must never tell them",
                            "This is the best of all of them", "That was a long time ago",
                            "It isn't what we came for",       "They'll be here before long"};
constexpr List<8> kSpeech{"said", "answered", "whispered", "asked", "shouted", "replied", "thought", "promised"};
constexpr List<8> kLinks{"but", "and", "while", "because", "so", "although", "until", "for"};
constexpr List<10> kNumbers{"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "a dozen"};
constexpr List<4> kArticles{"the", "the", "a", "the same"};

/// Draws of one document, in order.
class Writer {
 public:
  Writer(random::Key key, const Scene& scene) : key_(key), scene_(scene) {
    for (std::string_view& name : cast_) name = pick(kNames);
    place_ = pick(scene.places);
  }

  std::string document() {
    std::string text = title() + "\n\n";
    const uint64_t paragraphs = 3 + draw(4);
    for (uint64_t i = 0; i < paragraphs; ++i) text.append(i > 0 ? "\n" : "").append(paragraph()).append("\n");
    return text;
  }

 private:
  uint64_t draw(uint64_t bound) { return random::below(key_, drawn_++, bound); }
  bool chance(uint64_t percent) { return draw(100) < percent; }
  std::string pick_text(Words words) { return std::string(pick(words)); }
  std::string_view pick(Words words) { return words[draw(words.size())]; }

  std::string title() {
    std::string title = fmt::format("The {} and the {}", pick(scene_.people), pick(scene_.things));
    return chance(30) ? title + fmt::format(" of {}", 1700 + draw(300)) : title;
  }

  /// "a ripe apple": a noun with its article, at times with an adjective.
  std::string noun(Words nouns) {
    std::string words = chance(45) ? fmt::format("{} {}", pick(scene_.qualities), pick(nouns)) : pick_text(nouns);
    const std::string_view article = pick(kArticles);
    const bool vowel = std::string_view("aeiou").find(words.front()) != std::string_view::npos;
    return fmt::format("{}{} {}", article, article == "a" && vowel ? "n" : "", words);
  }

  std::string someone() { return chance(55) ? pick_text(cast_) : noun(scene_.people); }
  std::string place() { return chance(50) ? fmt::format("the {}", place_) : noun(scene_.places); }

  std::string clause() {
    switch (draw(5)) {
      case 0:
        return fmt::format("{} {} {} {}", someone(), pick(scene_.deeds), noun(scene_.things), pick(kManners));
      case 1:
        return fmt::format("{} {} {} near {}", someone(), pick(scene_.deeds), noun(scene_.things), place());
      case 2:
        return fmt::format("there were {} {} people in {}", pick(kNumbers), pick(scene_.qualities), place());
      case 3:
        return fmt::format("{} of {} was {}", noun(scene_.things), someone(), pick(scene_.qualities));
      default:
        return fmt::format("{} {} {}", someone(), pick(scene_.deeds), noun(scene_.things));
    }
  }

  std::string sentence() {
    std::string text;
    switch (draw(6)) {
      case 0:
        text = fmt::format("\"{},\" {} {}.", pick(kSayings), pick(kSpeech), someone());
        break;
      case 1:
        text = fmt::format("{}, {}.", pick(kTimes), clause());
        break;
      case 2:
        text = fmt::format("{}, {} {}.", clause(), pick(kLinks), clause());
        break;
      case 3:
        text = fmt::format("in {}, {}; {}.", 1700 + draw(300), clause(), clause());
        break;
      default:
        text = clause() + ".";
    }
    const size_t first = text.front() == '"' ? 1 : 0;
    if (text[first] >= 'a' && text[first] <= 'z') text[first] = static_cast<char>(text[first] - 'a' + 'A');
    return text;
  }

  std::string paragraph() {
    std::string text = sentence();
    const uint64_t more = 4 + draw(6);
    for (uint64_t i = 0; i < more; ++i) text.append(1, ' ').append(sentence());
    return text;
  }

  random::Key key_;
  uint64_t drawn_ = 0;
  const Scene& scene_;
  List<3> cast_;
  std::string_view place_;
};

}  // namespace

std::string synthetic_document(uint64_t seed, int64_t index) {
  TRIREME_CHECK(index >= 0, "document {}", index);
  const random::Key key = random::derive(random::make_key(seed, "synthetic text"), static_cast<uint64_t>(index));
  // The scene has a key of its own: the writer's draws begin at 0.
  const Scene& scene = kScenes[random::below(random::derive(key, 0), 0, kScenes.size())];
  return Writer(key, scene).document();
}

void write_synthetic_text(const std::filesystem::path& folder, int64_t documents, uint64_t seed) {
  make_directories(folder);
  for (int64_t i = 0; i < documents; ++i) {
    const std::filesystem::path path = folder / fmt::format("{:05}.txt", i);
    const FileDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC, "write");
    write_all(file.get(), synthetic_document(seed, i), path);
  }
}

}  // namespace trireme::data
