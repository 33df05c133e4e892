//! Size of the blocks that one checksum covers.

use sws_kernels::Encoding;

use crate::PieceKind;

/// Maximum size of a part that is read as a whole and has one checksum. 16 MiB is also the smallest
/// capacity of a cache slot, so nothing larger ever has to be in memory at once.
pub const WHOLE_LIMIT: u64 = 16 << 20;
/// Maximum number of bytes per checksum in a larger part. A longer row has a checksum of its own.
pub const BLOCK_BYTES: u64 = 4 << 20;
/// Maximum number of bytes per checksum in the embedding, where a pass looks up single rows.
pub const EMBED_BLOCK_BYTES: u64 = 64 << 10;
/// Maximum number of bytes per checksum in other tables whose rows are looked up. Their rows are
/// longer, or so many that there would be a million checksums.
pub const TABLE_BLOCK_BYTES: u64 = 128 << 10;

/// Alignment of direct reads on all known devices.
const PAGE: u64 = 4096;

/// Returns the number of bytes that one checksum covers in a part of `rows` rows of `row_bytes`
/// bytes: a whole number of rows and, where possible, of pages. At least 1.
pub fn check_len(row_bytes: u64, rows: u64, kind: PieceKind) -> u64 {
    let whole = row_bytes.saturating_mul(rows);
    let limit = match kind {
        PieceKind::Embed => EMBED_BLOCK_BYTES,
        PieceKind::Table(_) => TABLE_BLOCK_BYTES,
        _ if whole <= WHOLE_LIMIT => whole,
        _ => BLOCK_BYTES,
    };
    if whole <= limit {
        return whole.max(1);
    }
    let fitting = (limit / row_bytes).max(1);
    // The fewest rows that fill whole pages: `PAGE` / gcd(`PAGE`, `row_bytes`).
    let page_rows = PAGE >> row_bytes.trailing_zeros().min(PAGE.trailing_zeros());
    let block_rows = if fitting >= page_rows { fitting - fitting % page_rows } else { fitting };
    block_rows * row_bytes
}

/// The encoding in which matrices of this kind of piece are stored, if `asked` is requested. Rows
/// of a table need all of its patches in memory, and bf11 has hundreds of times as many patches as
/// bf12. Nested is only for experts, as only they have stand-ins.
pub fn encoding_of(kind: PieceKind, asked: Encoding) -> Encoding {
    match (kind, asked) {
        (PieceKind::Table(_), Encoding::Bf11 | Encoding::Nested) => Encoding::Bf12,
        (PieceKind::Expert(_), Encoding::Nested) => Encoding::Nested,
        (_, Encoding::Nested) => Encoding::Bf11,
        _ => asked,
    }
}

/// The encoding in which matrices published as `published` are stored, if others are stored as
/// `asked`. Codes of e4m3 are packed like those others.
pub fn quantised_as(published: Encoding, asked: Encoding) -> Encoding {
    match (published, asked) {
        (Encoding::Fp8(scales), Encoding::Bf11 | Encoding::Nested) => Encoding::Fp7(scales),
        _ => published,
    }
}

/// Number of rows of a part, for placing checksums. A part that all rows share is read whole. It
/// may have many patches, so each of its bytes counts as a row.
pub fn part_rows(encoding: Option<Encoding>, index: usize, rows: u64, len: u64) -> u64 {
    match encoding.and_then(|encoding| encoding.parts().get(index)) {
        Some(_) if index == 2 && encoding.is_some_and(Encoding::has_patches) => len,
        Some(part) if part.is_whole() => 1,
        Some(part) => rows.div_ceil(part.step_rows()),
        None => rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_rows_and_pages_below_the_limit() {
        let head = PieceKind::LmHead;
        let embed = PieceKind::Embed;
        let table = PieceKind::Table(0);
        #[rustfmt::skip]
        let cases = [
            // row_bytes, rows, kind, expected
            (0, 0, head, 1),
            (8192, 0, head, 1),
            (384, 1, embed, 384),
            (4096, 4096, head, 16 << 20),               // exactly at the limit: whole
            (4096, 4097, head, 4 << 20),                // one row above: blocks
            (8192, 32_000, embed, 64 << 10),
            (384, 4096, embed, 160 * 384),              // 170 rows fit; 32 rows are 3 pages
            (6145, 4096, head, 682 * 6145),             // 4096 rows for whole pages: too many
            (20 << 20, 2, head, 20 << 20),              // a row larger than a block
            (100 << 10, 3, embed, 100 << 10),
            (17_920, 262_144, table, 7 * 17_920),       // 8 rows for whole pages: too many
            (21_504, 262_144, table, 4 * 21_504),       // 6 rows fit; 4 rows are 21 pages
        ];
        for (row_bytes, rows, kind, expected) in cases {
            assert_eq!(check_len(row_bytes, rows, kind), expected, "{row_bytes} × {rows} {kind:?}");
        }
    }
}
