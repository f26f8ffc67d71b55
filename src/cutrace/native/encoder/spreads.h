// What there is to know of many integers by group without keeping them: how many, sum, extremes, deviation, and a
// histogram, from which quantiles come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "table.h"

namespace cutrace {

class Spreads {
 public:
  // Deviations are put together from those of so many numbers at a time.
  static constexpr std::size_t kPiece = std::size_t{1} << 16;
  // A bin is a float without its last bits: ten of the mantissa stay.
  static constexpr unsigned kDroppedBits = 13;
  static constexpr unsigned kCodeBits = 31 - kDroppedBits;

  struct Spread {
    std::int64_t count = 0;
    std::uint64_t low = 0, high = 0;  // the sum, in 128 bits
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), greatest = 0;
    double mean = 0, squares = 0;  // squares of the differences from the mean
  };
  struct Bin {
    std::uint64_t key = 0;  // the group, and behind it the code of the bin
    std::int64_t count = 0;

    std::uint32_t group() const { return static_cast<std::uint32_t>(key >> kCodeBits); }
    float begin() const { return number(code()); }
    float end() const { return number(code() + 1); }

   private:
    std::uint32_t code() const { return static_cast<std::uint32_t>(key) & ((1u << kCodeBits) - 1); }
    static float number(std::uint32_t code) {
      const std::uint32_t bits = code << kDroppedBits;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
  };

  // Takes in numbers from 0, of the group beside each; Groups and Numbers have operator[].
  template <typename Groups, typename Numbers>
  void add(const Groups& groups, const Numbers& numbers, std::size_t size) {
    for (std::size_t begin = 0; begin < size; begin += kPiece) {
      const std::size_t end = begin + kPiece < size ? begin + kPiece : size;
      std::uint32_t least = groups[begin], greatest = least;
      for (std::size_t i = begin; i < end; ++i) {
        least = groups[i] < least ? groups[i] : least;
        greatest = groups[i] > greatest ? groups[i] : greatest;
      }
      grow(greatest);
      if (least == greatest) {
        // What is known of a single group need not go through memory.
        touched_.push_back(least);
        Spread spread = spreads_[least];
        Piece piece;
        for (std::size_t i = begin; i < end; ++i) note(spread, piece, numbers[i]);
        piece.mean /= static_cast<double>(piece.count);
        for (std::size_t i = begin; i < end; ++i) deviate(piece, numbers[i]);
        spreads_[least] = spread;
        pieces_[least] = piece;
      } else {
        for (std::size_t i = begin; i < end; ++i) {
          Piece& piece = pieces_[groups[i]];
          if (piece.count == 0) touched_.push_back(groups[i]);
          note(spreads_[groups[i]], piece, numbers[i]);
        }
        for (const std::uint32_t group : touched_) pieces_[group].mean /= static_cast<double>(pieces_[group].count);
        for (std::size_t i = begin; i < end; ++i) deviate(pieces_[groups[i]], numbers[i]);
      }
      put_together();
      count(groups, numbers, begin, end);
    }
  }

  const std::vector<Spread>& spreads() const { return spreads_; }
  // In the order in which numbers first fell into them.
  const std::vector<Bin>& bins() const { return bins_; }

 private:
  // The numbers of a group among those that are being taken in; the mean is their sum at first.
  struct Piece {
    std::uint64_t count = 0;
    double mean = 0, squares = 0;
  };

  static void note(Spread& spread, Piece& piece, std::int64_t number) {
    const auto amount = static_cast<std::uint64_t>(number);
    spread.low += amount;
    spread.high += spread.low < amount;
    spread.least = number < spread.least ? number : spread.least;
    spread.greatest = number > spread.greatest ? number : spread.greatest;
    ++piece.count;
    piece.mean += static_cast<double>(number);
  }

  static void deviate(Piece& piece, std::int64_t number) {
    const double difference = static_cast<double>(number) - piece.mean;
    piece.squares += difference * difference;
  }

  template <typename Groups, typename Numbers>
  void count(const Groups& groups, const Numbers& numbers, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint64_t key = std::uint64_t{groups[i]} << kCodeBits | code(static_cast<float>(numbers[i]));
      const std::uint32_t number = numbers_.add(
          hash_of(key), [&](std::uint32_t known) { return bins_[known].key == key; }, [&] { bins_.push_back({key, 0}); });
      ++bins_[number].count;
    }
  }

  static std::uint64_t code(float number) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return (bits & 0x7FFFFFFFu) >> kDroppedBits;
  }

  void grow(std::uint32_t group);
  void put_together();

  std::vector<Spread> spreads_;
  std::vector<Piece> pieces_;
  std::vector<std::uint32_t> touched_;  // groups with a piece
  std::vector<Bin> bins_;
  Table numbers_;
};

}  // namespace cutrace
