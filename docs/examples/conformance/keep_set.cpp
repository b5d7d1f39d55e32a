// A selection kernel in C++ under test: c++ -std=c++17 keep_set.cpp -o keep_set, then
// kvlab conformance run --exec ./keep_set --target keep_set
//
// Called as: keep_set TARGET INPUT OUTPUT. Files are safetensors: 8 bytes with the length of a JSON
// header, the header, the numbers. The header is small and of a known form, so that searching it for
// names will do here; a real program takes a JSON library.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

const int not_implemented = 77;

// The text that follows "name": in the header.
const char *find(const std::string &header, const std::string &name) {
  size_t at = header.find("\"" + name + "\":");
  if (at == std::string::npos) throw std::runtime_error("no " + name + " in the header");
  return header.c_str() + at + name.size() + 3;
}

// The pair of numbers in [a,b] that follows a key.
std::pair<size_t, size_t> two(const char *text, const char *key) {
  const char *list = std::strchr(std::strstr(text, key), '[') + 1;
  char *comma;
  size_t first = std::strtoull(list, &comma, 10);
  return {first, std::strtoull(comma + 1, nullptr, 10)};
}

// Which of two entries stays: the better one; of equal scores the later. -0 equals 0.
bool stays_before(const float *scores, int64_t a, int64_t b) {
  if (scores[a] != scores[b]) return scores[a] > scores[b];
  return a > b;
}

int main(int count, char **words) {
  if (count != 4 || std::string(words[1]) != "keep_set") return not_implemented;
  std::ifstream in(words[2], std::ios::binary);
  std::string file((std::istreambuf_iterator<char>(in)), {});
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  std::string header = file.substr(8, length);
  const char *data = file.data() + 8 + length;

  auto [heads, entries] = two(find(header, "scores"), "shape");
  auto scores = reinterpret_cast<const float *>(
      data + two(find(header, "scores"), "data_offsets").first);
  auto safe = reinterpret_cast<const uint8_t *>(
      data + two(find(header, "safe"), "data_offsets").first);
  size_t room = std::strtoull(find(header, "room") + 1, nullptr, 10);  // a string: "8"

  std::vector<int64_t> keep;
  for (size_t g = 0; g < heads; g++, scores += entries, safe += entries) {
    std::vector<int64_t> candidates, kept;
    for (size_t j = 0; j < entries; j++) (safe[j] ? kept : candidates).push_back(j);
    std::sort(candidates.begin(), candidates.end(),
              [&](int64_t a, int64_t b) { return stays_before(scores, a, b); });
    candidates.resize(std::min(room, candidates.size()));
    kept.insert(kept.end(), candidates.begin(), candidates.end());
    std::sort(kept.begin(), kept.end());
    keep.insert(keep.end(), kept.begin(), kept.end());
  }

  std::string shape = std::to_string(heads) + "," + std::to_string(keep.size() / heads);
  std::string out = "{\"keep\":{\"dtype\":\"I64\",\"shape\":[" + shape +
                    "],\"data_offsets\":[0," + std::to_string(8 * keep.size()) + "]}}";
  uint64_t size = out.size();
  std::ofstream made(words[3], std::ios::binary);
  made.write(reinterpret_cast<char *>(&size), 8);
  made << out;
  made.write(reinterpret_cast<char *>(keep.data()), 8 * keep.size());
}
