// Products with bf16 whose exponents have codes. Patches are found by counting the escapes before them, which
// every thread does by itself: no thread waits for another.

// Eight bytes at any address.
DEVICE U64 u64_at(GLOBAL const U8 *p) {
  U64 word = 0;
  for (U32 i = 0u; i < 8u; i++) word |= (U64)p[i] << (8u * i);
  return word;
}

// The lowest bits.
DEVICE U64 below(U32 bits) { return bits >= 64u ? ~(U64)0 : ((U64)1 << bits) - 1; }

DEVICE float sign_and_mantissa(U32 byte, U32 exponent) {
  return bf16((byte & 0x80u) << 8 | exponent << 7 | (byte & 0x7fu));
}

#define NIBBLES ((U64)0x1111111111111111)
#define QUARTERS ((U64)0x0001000100010001)

KERNEL void product_bf12(ARGUMENTS) {
  BEGIN
  patches_of(&r, job, row, 1u);
  float sum = 0.0f;
  U32 used = 0u;
  for (U32 first = 0u; first < cols; first += 64u) {
    GLOBAL const U8 *bytes = r.codes + (U64)(first / 64u) * 96u;
    U32 n = cols - first < 64u ? cols - first : 64u;
    U32 whole = n == 64u;
    // One bit for each nibble that is an escape.
    U64 escapes[4];
    for (U32 j = 0u; j < 4u; j++) {
      U64 word = 0;
      if (whole) {
        word = u64_at(bytes + 64u + 8u * j);
      } else {
        for (U32 i = 8u * j; i < 8u * j + 8u && 2u * i < n; i++) word |= (U64)bytes[n + i] << (8u * (i % 8u));
        word &= 16u * j < n ? below(4u * (n - 16u * j)) : 0;
      }
      escapes[j] = word & word >> 1 & word >> 2 & word >> 3 & NIBBLES;
    }
    for (U32 c = lane; c < n; c += 32u) {
      // Column 16k + i of a whole block is at 4i + k.
      U32 k = c / 16u, i = c % 16u;
      U32 at = whole ? 4u * i + k : c;
      U32 code = nibble(bytes + n, at);
      U32 exponent = r.scales[code];
      if (code == 15u) {
        U32 place = used;
        for (U32 j = 0u; j < 4u; j++) {
          if (whole) {
            place += COUNT(escapes[j] & QUARTERS * below(4u * k));
            if (4u * j < i) place += COUNT(escapes[j] & QUARTERS << (4u * k) & below(16u * (i - 4u * j)));
          } else if (16u * j < c) {
            place += COUNT(escapes[j] & below(4u * (c - 16u * j)));
          }
        }
        exponent = place < r.beside_len ? (U32)r.beside[place] : 255u;
      }
      sum = FMA(sign_and_mantissa(bytes[at], exponent), x[first + c], sum);
    }
    for (U32 j = 0u; j < 4u; j++) used += COUNT(escapes[j]);
  }
  sum = fold(lanes[ROW_OF_GROUP], lane, 32u, sum);
  finish(weights, job, wanted, lane, sum, outputs);
}

// So many bits of the patches, at most 64; beyond their end all are ones.
DEVICE U64 bits_at(const Row *r, U32 byte, U32 bit, U32 count) {
  U64 low = 0, high = 0xff;
  byte += bit / 8u;
  for (U32 i = 0u; i < 8u; i++) {
    low |= (U64)(byte + i < r->beside_len ? r->beside[byte + i] : (U8)255) << (8u * i);
  }
  if (byte + 8u < r->beside_len) high = r->beside[byte + 8u];
  U32 shift = bit % 8u;
  U64 bits = shift == 0u ? low : low >> shift | high << (64u - shift);
  return bits & below(count);
}

KERNEL void product_bf11(ARGUMENTS) {
  BEGIN
  patches_of(&r, job, row, 0u);
  float sum = 0.0f;
  U32 used = 0u;
  for (U32 first = 0u; first < cols; first += 64u) {
    GLOBAL const U8 *bytes = r.codes + (U64)(first / 64u) * 80u;
    U32 n = cols - first < 64u ? cols - first : 64u;
    U32 plane = (n + 7u) / 8u;
    // The codes of three tiers, each in two planes, and the places whose codes are in the next tier.
    U64 low = 0, high = 0;
    for (U32 i = 0u; i < plane; i++) {
      low |= (U64)bytes[n + i] << (8u * i);
      high |= (U64)bytes[n + plane + i] << (8u * i);
    }
    U64 next = low & high & below(n);
    U32 seconds = COUNT(next);
    U64 low2 = bits_at(&r, used, 0u, seconds), high2 = bits_at(&r, used, seconds, seconds);
    U64 next2 = low2 & high2;
    U32 thirds = COUNT(next2);
    U64 low3 = bits_at(&r, used, 2u * seconds, thirds);
    U64 high3 = bits_at(&r, used, 2u * seconds + thirds, thirds);
    U64 next3 = low3 & high3;
    U32 verbatim = used + (2u * seconds + 2u * thirds + 7u) / 8u;
    for (U32 c = lane; c < n; c += 32u) {
      // Pairs of neighbours within each sixteen bytes of a whole block.
      U32 k = c / 16u, i = c % 16u;
      U32 at = n == 64u ? 16u * (i / 4u) + 8u * (k / 2u) + 2u * (i % 4u) + k % 2u : c;
      U32 code = (U32)(low >> at & 1u) | (U32)(high >> at & 1u) << 1;
      U32 exponent = r.scales[code < 3u ? code : 0u];
      if (code == 3u) {
        U32 second = COUNT(next & below(at));
        code = (U32)(low2 >> second & 1u) | (U32)(high2 >> second & 1u) << 1;
        exponent = r.scales[3u + (code < 3u ? code : 0u)];
        if (code == 3u) {
          U32 third = COUNT(next2 & below(second));
          code = (U32)(low3 >> third & 1u) | (U32)(high3 >> third & 1u) << 1;
          exponent = r.scales[6u + (code < 3u ? code : 0u)];
          if (code == 3u) {
            U32 place = verbatim + COUNT(next3 & below(third));
            exponent = place < r.beside_len ? (U32)r.beside[place] : 255u;
          }
        }
      }
      sum = FMA(sign_and_mantissa(bytes[at], exponent), x[first + c], sum);
    }
    used = verbatim + COUNT(next3);
    if (used > r.beside_len) used = r.beside_len;
  }
  sum = fold(lanes[ROW_OF_GROUP], lane, 32u, sum);
  finish(weights, job, wanted, lane, sum, outputs);
}
