//! Digests of choices, as `long.py` among the goldens writes them: of each block of tokens the sum of
//! a hash for each token, which depends on the token's number and on the set that was chosen for it.

use super::text::Choices;

/// Tokens of a digest.
const BLOCK: usize = 256;

/// The last step of splitmix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A text: token i is a hash of i, modulo the vocabulary.
pub(super) fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    (1..=count as u64).map(|i| (mix(i) % vocab as u64) as u32).collect()
}

/// The digests of what was chosen for each token that saw more, but for the rows in `left_out`, and
/// the number of all such rows.
pub(super) fn digests(choices: &Choices, tokens: usize, left_out: &[u32]) -> (Vec<u64>, usize) {
    let &Choices { lists, first, ref rows } = choices;
    let all = lists * (tokens - first.min(tokens));
    let mut digests = vec![0u64; tokens.div_ceil(BLOCK)];
    let numbered = (lists * tokens - rows.len()..).zip(rows);
    for (row, chosen) in numbered.skip(rows.len().saturating_sub(all)) {
        if left_out.binary_search(&(row as u32)).is_ok() {
            continue;
        }
        let set = chosen.iter().fold(0u64, |sum, &it| sum.wrapping_add(mix(u64::from(it) + 1)));
        let digest = &mut digests[row / (lists * BLOCK)];
        *digest = digest.wrapping_add(mix(set ^ mix(row as u64 + 1)));
    }
    (digests, all)
}

/// Asserts that digests are those expected.
pub(super) fn compare(what: &str, found: &[u64], expected: &[u64]) {
    let pairs = found.iter().zip(expected).enumerate();
    let other: Vec<_> =
        pairs.filter(|(_, (a, b))| a != b).map(|(block, _)| block * BLOCK).collect();
    assert!(
        other.is_empty() && found.len() == expected.len(),
        "{what}: other choices in {} blocks of {BLOCK} tokens, from token {:?} on",
        other.len(),
        other.first()
    );
}

#[test]
fn any_other_choice_has_another_digest() {
    let rows = |last: u32| vec![vec![0], vec![0, 1], vec![1, 2], vec![0, last]];
    let of = |rows, left_out: &[u32]| digests(&Choices { lists: 1, first: 2, rows }, 4, left_out);
    assert_eq!(of(rows(3), &[]).1, 2, "the first two saw no more");
    assert_ne!(of(rows(3), &[]), of(rows(2), &[]));
    assert_eq!(of(rows(3), &[3]), of(rows(2), &[3]));
    // The same sets of other tokens.
    let swapped = vec![vec![0], vec![0, 1], vec![0, 3], vec![1, 2]];
    assert_ne!(of(rows(3), &[]), of(swapped, &[]));
    // Only the tokens from the first one on, and all.
    assert_eq!(of(rows(3), &[]), of(rows(3)[2..].to_vec(), &[]));
}
