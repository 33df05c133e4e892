//! Traces as CSV files: a line for each expert that a token used.
//!
//! Comments begin with `#`; one may contain `n_expert=128`. The heading names the columns. Those
//! read are turn, phase, step, layer, slot and expert. A turn is a sequence. Its lines with phase 0
//! are its prompt, which went through the layers together.

use super::{Trace, TraceError};
use crate::shape::HistoryShape;

const COLUMNS: [&str; 6] = ["turn", "step", "layer", "slot", "expert", "phase"];

pub(super) fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Err(TraceError::Unknown) };
    let mut columns: Option<[usize; 6]> = None;
    let mut experts = None;
    // Columns in the order of `COLUMNS`; sorted below by turn, step, layer and slot.
    let mut rows: Vec<[u32; 6]> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what| TraceError::Line { line: number, what };
        if let Some(comment) = line.strip_prefix('#') {
            if let Some(word) = comment.split_whitespace().find_map(|w| w.strip_prefix("n_expert="))
            {
                let Ok(count) = word.parse::<usize>() else {
                    return Err(wrong("n_expert is not a number"));
                };
                experts = Some(count);
            }
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        let Some(columns) = columns else {
            let mut found = [0; 6];
            for (found, name) in found.iter_mut().zip(COLUMNS) {
                let place = line.split(',').position(|column| column.trim() == name);
                *found = place.ok_or(TraceError::Unknown)?;
            }
            columns = Some(found);
            continue;
        };
        let mut row = [None; 6];
        for (place, cell) in line.split(',').enumerate() {
            if let Some(column) = columns.iter().position(|&column| column == place) {
                row[column] = cell.trim().parse().ok();
            }
        }
        if row.contains(&None) {
            return Err(wrong("each column that its heading names has a whole number"));
        }
        rows.push(row.map(Option::unwrap_or_default));
    }
    if columns.is_none() {
        return Err(TraceError::Unknown);
    }
    rows.sort_unstable();

    let mut numbers: Vec<u32> = rows.iter().map(|row| row[2]).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let most = rows.iter().map(|row| row[4]).max().ok_or(TraceError::Empty)?;
    let per_layer = rows.chunk_by(|a, b| a[..3] == b[..3]).map(<[_]>::len);
    let top_k = per_layer.max().ok_or(TraceError::Empty)?;
    let experts = experts.unwrap_or(most as usize + 1);
    let shape = HistoryShape { layers: numbers.len(), experts, top_k };
    Trace::new(shape)?;
    if most as usize >= experts {
        return Err(TraceError::Expert { expert: most, experts });
    }

    let tokens: Vec<&[[u32; 6]]> = rows.chunk_by(|a, b| a[..2] == b[..2]).collect();
    // The table may take at most a small multiple of the file's length, even if the file has many
    // layers and its tokens name few of them.
    let row = shape.layers * top_k;
    let most_ids = tokens.len().checked_mul(row).filter(|&ids| ids <= 64 * rows.len());
    let too_large = TraceError::TooLarge { layers: shape.layers, experts };
    let mut ids = vec![0; most_ids.ok_or(too_large)?];
    let mut prompt_after: Option<u32> = None;
    for (number, token) in tokens.iter().enumerate().rev() {
        let [turn, step, .., phase] = token[0];
        for (layer, name) in numbers.iter().enumerate() {
            let at = number * row + layer * top_k;
            let first = token.partition_point(|row| row[2] < *name);
            let chosen: Vec<u16> =
                token[first..].iter().take_while(|r| r[2] == *name).map(|r| r[4] as u16).collect();
            if chosen.len() == top_k {
                ids[at..at + top_k].copy_from_slice(&chosen);
            } else if chosen.is_empty() && phase == 0 && prompt_after == Some(turn) {
                // In a prompt only the last token needs the last layer. The other tokens copy its
                // experts, so that the layer as a whole uses the same ones.
                ids.copy_within(at + row..at + row + top_k, at);
            } else {
                let found = token.len();
                let expected = row;
                return Err(TraceError::Incomplete { turn, step, found, expected });
            }
        }
        prompt_after = (phase == 0).then_some(turn);
    }

    let (lens, passes) = lengths(&tokens);
    Trace::checked(shape, ids, Vec::new(), Some(lens), Some(passes))
}

/// Numbers of tokens, of each turn and of each pass; a prompt is one pass.
fn lengths(tokens: &[&[[u32; 6]]]) -> (Vec<u32>, Vec<u32>) {
    let mut lens: Vec<u32> = Vec::new();
    let mut passes: Vec<u32> = Vec::new();
    let mut before: Option<(u32, u32)> = None;
    for token in tokens {
        let [turn, .., phase] = token[0];
        match (&mut lens[..], before) {
            ([.., len], Some((last, _))) if last == turn => *len += 1,
            _ => lens.push(1),
        }
        match &mut passes[..] {
            [.., pass] if before == Some((turn, 0)) && phase == 0 => *pass += 1,
            _ => passes.push(1),
        }
        before = Some((turn, phase));
    }
    (lens, passes)
}
