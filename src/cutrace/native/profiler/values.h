// The file with the counts of a process for `cutrace profile`: lines of fields separated by tabs.
#pragma once

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

namespace cutrace {

// Appends a line to <pid>.values in `folder`.
inline void append_line(const std::string& folder, const std::string& line) {
  const std::string path = folder + "/" + std::to_string(getpid()) + ".values";
  if (std::FILE* file = std::fopen(path.c_str(), "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

// Values as fields of a line, each after a tab.
inline std::string words_of(const std::vector<double>& values) {
  std::string words;
  for (const double value : values) {
    char digits[32];
    // Not printf(), which writes a comma in many locales.
    words += '\t';
    words.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  return words;
}

}  // namespace cutrace
