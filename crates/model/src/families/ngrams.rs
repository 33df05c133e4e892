//! Tables of n-grams of Qwen4-Exp: their sizes, and the numbers that determine the rows of a token.

use sws_kernels::functional::MAX_TAPS;

use super::common::{Common, MAX_STATE, MAX_WIDTH};
use super::entries::size_or;
use super::qwen4::FAMILY;
use crate::config::{ConfigEntry, ConfigError, ConfigMap, FamilyConfig, MAX_COUNT, NGRAM_NUMBERS};
use crate::spec::{NgramNumbers, NgramSpec};

/// Limits far above any known model.
const MAX_NGRAM: u64 = 8;
/// Maximum number of rows that a token chooses in all tables. Each row needs a prime of its own.
const MAX_PRIMES: usize = 1024;
const MAX_ROWS: u64 = 1 << 32;
const MAX_PARTS: u64 = 65_536;

/// The n-gram table of each layer that has one.
pub(super) fn ngrams(
    config: &FamilyConfig,
    common: &Common<'_>,
    full: &[bool],
    streams: usize,
) -> Result<Vec<Option<NgramSpec>>, ConfigError> {
    let layers = common.layers;
    let mut tables = vec![None; layers];
    let Some(entry) = config.get("ple_layer_ids") else { return Ok(tables) };
    let mut own = vec![false; layers];
    for number in entry.list()? {
        let layer = match number.as_u64() {
            Some(number) if (1..=layers as u64).contains(&number) => number as usize - 1,
            _ => {
                let reason = format!("which must list numbers of layers, from 1 to {layers}");
                return Err(entry.invalid(reason));
            }
        };
        if full[layer] {
            return Err(config.unsupported(entry, "layers with delta nets"));
        }
        own[layer] = true;
    }
    if !own.contains(&true) {
        return Ok(tables);
    }
    let size = size_or(config.get("ngram_size"), 3, MAX_NGRAM)?;
    let heads = size_or(config.get("heads_per_ngram"), 8, MAX_COUNT)?;
    let hidden = common.decoder.hidden;
    let width = size_or(config.get("ple_embed_dim"), hidden, MAX_WIDTH)?;
    let rows = size.saturating_sub(1) * heads;
    if rows == 0 {
        return Err(config.need("ngram_size")?.invalid("which must be at least 2"));
    }
    if !width.is_multiple_of(rows) {
        let entry = config.any(&["ple_embed_dim", "heads_per_ngram", "hidden_size"]);
        let entry = entry.ok_or(ConfigError::MissingKey("ple_embed_dim"))?;
        return Err(entry.invalid(format!("and {width} elements do not divide among {rows} rows")));
    }
    let taps = size_or(config.get("ple_conv_kernel_size"), 4, MAX_COUNT)?;
    if let Some(entry) = config.get("ple_conv_kernel_size")
        && taps > MAX_TAPS
    {
        return Err(config.unsupported(entry, "up to 8"));
    }
    let end = end(config)?;
    if let Some(entry) = config.get(NGRAM_NUMBERS) {
        let numbers = numbers_of(entry, (size, rows))?;
        let ends = numbers.sizes.iter().zip(&numbers.offsets).map(|(size, offset)| size + offset);
        // The table may have further rows, which no token selects.
        let parts = vec![ends.max().unwrap_or(0) as usize];
        let numbers = Some(numbers);
        let spec = NgramSpec { size, heads, dim: width / rows, taps, end, parts, numbers };
        if spec.past(streams * hidden) > MAX_STATE {
            return Err(config
                .need("hidden_size")?
                .invalid("which with these n-grams no model has"));
        }
        for (table, own) in tables.iter_mut().zip(own) {
            if own {
                *table = Some(spec.clone());
            }
        }
        return Ok(tables);
    }
    let layers_with = own.iter().filter(|own| **own).count();
    if rows.saturating_mul(layers_with) > MAX_PRIMES {
        let entry = config.any(&["heads_per_ngram", "ple_layer_ids"]);
        let entry = entry.ok_or(ConfigError::MissingKey("heads_per_ngram"))?;
        return Err(entry.invalid("with which a token chooses more rows than in any model"));
    }
    let base = size_or(config.get("ngram_vocab_size_base"), 20_000_000, MAX_ROWS)? as u64;
    let divisor = size_or(config.get("make_ngram_vocab_size_divisible_by"), 128, MAX_ROWS)? as u64;
    let parts = parts(config)? as u64;
    let mut prime = base - 1;
    for (table, own) in tables.iter_mut().zip(own) {
        if !own {
            continue;
        }
        let mut all = 0;
        for _ in 0..rows {
            prime = next_prime(prime);
            all += prime;
        }
        let all = all.next_multiple_of(divisor);
        let parts = rows_of_parts(all, parts);
        let spec = NgramSpec { size, heads, dim: width / rows, taps, end, parts, numbers: None };
        if spec.past(streams * hidden) > MAX_STATE {
            return Err(config
                .need("hidden_size")?
                .invalid("which with these n-grams no model has"));
        }
        *table = Some(spec);
    }
    Ok(tables)
}

/// The number of rows in each part of a table, of at most `parts`. All but the last have equally many.
fn rows_of_parts(all: u64, parts: u64) -> Vec<usize> {
    let each = all.div_ceil(parts);
    let mut left = all;
    let mut rows = Vec::new();
    while left > 0 {
        let part = left.min(each);
        rows.push(part as usize);
        left -= part;
    }
    rows
}

/// The numbers of n-grams in a GGUF file. All sizes and offsets are those of rows.
fn numbers_of(
    entry: ConfigEntry<'_>,
    (size, rows): (usize, usize),
) -> Result<NgramNumbers, ConfigError> {
    let map = entry.object()?;
    let sizes = numbers_in(map, "sizes", rows, MAX_ROWS)?;
    if sizes.contains(&0) {
        let entry = ConfigEntry { key: "sizes", value: &map["sizes"] };
        return Err(entry.invalid("where a head without rows is listed"));
    }
    let multipliers = numbers_in(map, "multipliers", size, i64::MAX as u64)?;
    Ok(NgramNumbers { multipliers, sizes, offsets: numbers_in(map, "offsets", rows, MAX_ROWS)? })
}

/// The first `count` numbers of a list, each at most `most`.
fn numbers_in(
    map: &ConfigMap,
    key: &'static str,
    count: usize,
    most: u64,
) -> Result<Vec<i64>, ConfigError> {
    let value = map.get(key).ok_or(ConfigError::MissingKey(key))?;
    let entry = ConfigEntry { key, value };
    let given = entry.list()?;
    if given.len() < count {
        let reason = format!("of {} entries, where {count} are needed", given.len());
        return Err(entry.invalid(reason));
    }
    let mut numbers = Vec::with_capacity(count);
    for value in &given[..count] {
        match value.as_u64() {
            Some(number) if number <= most => numbers.push(number as i64),
            _ => return Err(entry.invalid(format!("which must list numbers up to {most}"))),
        }
    }
    Ok(numbers)
}

/// The token that ends a text; the first one if there are several.
fn end(config: &FamilyConfig) -> Result<u32, ConfigError> {
    let entry = config.need("eos_token_id")?;
    let first = match entry.value.as_list() {
        Some(list) => {
            ConfigEntry { value: list.first().ok_or(ConfigError::MissingKey(entry.key))?, ..entry }
        }
        None => entry,
    };
    Ok(first.count(MAX_WIDTH)? as u32)
}

/// Number of parts of a table.
fn parts(config: &FamilyConfig) -> Result<u32, ConfigError> {
    Ok(size_or(config.get("split_ngram_parts"), 512, MAX_PARTS)? as u32)
}

/// Number of parts of n-gram tables in a checkpoint; 0 for families without such tables.
pub(crate) fn parts_of_tables(config: &FamilyConfig) -> Result<u32, ConfigError> {
    if FAMILY.model_types.contains(&config.model_type()) { parts(config) } else { Ok(0) }
}

/// The layer with the one table of a GGUF file.
pub(crate) fn layer_with_table(config: &FamilyConfig) -> u32 {
    if FAMILY.model_types.contains(&config.model_type())
        && let Some(entry) = config.get("ple_layer_ids")
        && let Some([first, ..]) = entry.value.as_list()
        && let Some(number @ 1..) = first.as_u64()
    {
        return u32::try_from(number - 1).unwrap_or(0);
    }
    0
}

fn next_prime(after: u64) -> u64 {
    let mut next = after + 1;
    while !is_prime(next) {
        next += 1;
    }
    next
}

fn is_prime(n: u64) -> bool {
    if n < 3 || n.is_multiple_of(2) {
        return n == 2;
    }
    let mut divisor = 3;
    while divisor * divisor <= n {
        if n.is_multiple_of(divisor) {
            return false;
        }
        divisor += 2;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_follow_each_other() {
        let cases = [(0, 2), (2, 3), (3, 5), (13, 17), (24, 29), (19_999_999, 20_000_003)];
        for (after, expected) in cases {
            assert_eq!(next_prime(after), expected);
        }
    }
}
