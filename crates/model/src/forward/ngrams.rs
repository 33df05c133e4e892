//! N-gram tables, whose rows are selected by the last few tokens.
//!
//! A layer computes a value from the rows of a token, and a key for each residual stream. A gate
//! computed from the key and the stream determines how much of the value is added to the stream. A
//! convolution of earlier values is added, too.

use sws_format::{Pass, PieceId, PieceKind, Span};
use sws_kernels::functional::{ShortConv, add, dots, sigmoid};

use super::by_rows::by_rows;
use super::linear::{Product, multiply};
use super::mixer::MixerContext;
use super::norms::norm_streams;
use super::past::filter;
use crate::layer_state::SequenceState;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::{LayerSpec, ModelSpec, NgramNumbers, NgramSpec};
use crate::workspace::{AttentionWork, DeltaWork, Workspace, grown};

/// A table whose stored numbers select a row that does not exist.
#[derive(Debug, thiserror::Error)]
#[error(
    "the numbers by which layer {layer} finds the rows of n-grams name a row that its table does not have; download the checkpoint again"
)]
struct BadNgramTable {
    layer: usize,
}

/// Adds the numbers of the rows that the tokens of a pass select in a layer's table.
pub(super) fn find(
    (model, l): (&ModelSpec, usize),
    (pass, sequences): (&Pass, &[SequenceState]),
    weights: &dyn Weights,
    numbers: &mut Vec<u64>,
) -> Result<(), SourceError> {
    let layer = &model.layers[l];
    let Some(spec) = &layer.ngrams else { return Ok(()) };
    let before = past_of_mixer(layer) + spec.conv_past(model.state_width());
    numbers.resize(pass.len() * spec.rows(), 0);
    for span in &pass.spans {
        let past = &sequences[span.sequence].layers[l].past()[before..];
        let text = NgramText { past, tokens: tokens_of(span, &pass.tokens) };
        hash((l, spec), weights, text, &mut numbers[span.first_row * spec.rows()..])?;
    }
    Ok(())
}

/// Number of inputs of earlier tokens that the mixer of a layer remembers, before those of n-grams.
fn past_of_mixer(layer: &LayerSpec) -> usize {
    layer.mixer.memory().map_or(0, |memory| memory.past)
}

/// Tokens of a sequence, and the tokens before them.
#[derive(Clone, Copy)]
struct NgramText<'a> {
    /// Earlier tokens as they are remembered: the bits of each are its number plus one, or 0 before
    /// the start.
    past: &'a [f32],
    tokens: &'a [u32],
}

impl NgramText<'_> {
    /// The token `back` positions before the token `of`; `None` before the start.
    fn token(&self, of: usize, back: usize) -> Option<u32> {
        match of.checked_sub(back) {
            Some(at) => Some(self.tokens[at]),
            None => (self.past[self.past.len() + of - back].to_bits()).checked_sub(1),
        }
    }
}

fn tokens_of<'t>(span: &Span, tokens: &'t [u32]) -> &'t [u32] {
    &tokens[span.first_row..][..span.tokens]
}

/// Computes the numbers of the rows of each token: for an n-gram, the tokens times the multipliers
/// of their distances, combined by exclusive or, modulo the number of rows of each head.
fn hash(
    (layer, spec): (usize, &NgramSpec),
    weights: &dyn Weights,
    text: NgramText<'_>,
    numbers: &mut [u64],
) -> Result<(), BadNgramTable> {
    let piece = PieceId::table(layer as u32, 0);
    let [multipliers, sizes, offsets] = match &spec.numbers {
        Some(NgramNumbers { multipliers, sizes, offsets }) => {
            [multipliers, sizes, offsets].map(|all| WholeNumbers::Given(all))
        }
        None => [Role::NgramMultipliers, Role::NgramSizes, Role::NgramOffsets]
            .map(|role| whole_numbers(weights.vector(piece, role))),
    };
    let limit = spec.table_rows() as i64;
    for (token, numbers) in
        numbers.chunks_exact_mut(spec.rows()).take(text.tokens.len()).enumerate()
    {
        let mut mixed = 0i64;
        let mut ended = false;
        for back in 0..spec.size {
            let at = match text.token(token, back) {
                Some(at) if !ended => at,
                _ => spec.end,
            };
            // An n-gram never reaches across an end token before its last token.
            ended |= back > 0 && at == spec.end;
            mixed ^= i64::from(at).wrapping_mul(multipliers.get(back));
            let Some(length) = back.checked_sub(1) else { continue };
            let first = length * spec.heads;
            for (head, number) in (first..).zip(&mut numbers[first..first + spec.heads]) {
                if let Some(row) = mixed.checked_rem_euclid(sizes.get(head))
                    && let Some(row) = row.checked_add(offsets.get(head))
                    && (0..limit).contains(&row)
                {
                    *number = row as u64;
                } else {
                    return Err(BadNgramTable { layer });
                }
            }
        }
    }
    Ok(())
}

/// 64-bit integers.
enum WholeNumbers<'a> {
    /// Their halves are stored as the bits of floats, the lower half first.
    Stored(&'a [[f32; 2]]),
    Given(&'a [i64]),
}

fn whole_numbers(vector: &[f32]) -> WholeNumbers<'_> {
    WholeNumbers::Stored(vector.as_chunks::<2>().0)
}

impl WholeNumbers<'_> {
    fn get(&self, at: usize) -> i64 {
        let halves = match self {
            WholeNumbers::Stored(all) => all[at],
            WholeNumbers::Given(all) => return all[at],
        };
        let [low, high] = halves.map(|half| u64::from(half.to_bits()));
        (high << 32 | low) as i64
    }
}

/// Adds the contribution of each token's rows to the streams of `hidden`, and remembers the tokens.
pub(super) fn ngrams(
    context: &MixerContext<'_>,
    (model, tokens): (&ModelSpec, &[u32]),
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
    hidden: &mut [f32],
) -> Result<(), SourceError> {
    let &MixerContext { tier, layer: l, norm: by, hidden: width, spans, .. } = context;
    let layer = &model.layers[l];
    let Some(spec) = &layer.ngrams else { return Ok(()) };
    let id = PieceId::new(l as u32, PieceKind::Attention);
    let all = model.state_width();
    let count = tokens.len();
    let Workspace { attention, scratch, rows, .. } = work;
    let AttentionWork { q, k, v, mixed, packed, delta: DeltaWork { beta, .. }, .. } = attention;
    packed.pack(tier, &rows[..count * spec.width()], count, spec.width());
    let keys = grown(q, count * all);
    let values = grown(v, count * width);
    let mut products = [
        Some(Product::new(id, Role::NgramKey, packed, &mut *keys, all)),
        Some(Product::new(id, Role::NgramValue, packed, &mut *values, width)),
    ];
    multiply(tier, weights, &mut products, scratch)?;
    let queries = grown(k, count * all);
    queries.copy_from_slice(hidden);
    norm_streams(tier, by, width, weights.vector(id, Role::NgramKeyNorm), keys);
    norm_streams(tier, by, width, weights.vector(id, Role::NgramQueryNorm), queries);
    let gates = grown(beta, count * (all / width));
    by_rows(gates, 1, |first, gates| {
        let part = first * width..(first + gates.len()) * width;
        dots(tier, &keys[part.clone()], &queries[part], width, gates);
    });
    let root = (width as f32).sqrt();
    for gate in &mut *gates {
        *gate = signed_root(*gate / root);
    }
    sigmoid(tier, gates);
    let gated = grown(mixed, count * all);
    by_rows(gated, width, |first, rows| {
        for (row, to) in (first..).zip(rows.chunks_exact_mut(width)) {
            let value = &values[row / (all / width) * width..][..width];
            for (to, value) in to.iter_mut().zip(value) {
                *to = gates[row] * value;
            }
        }
    });
    let normed = queries;
    normed.copy_from_slice(gated);
    norm_streams(tier, by, width, weights.vector(id, Role::NgramConvNorm), normed);
    let taps = spec.taps;
    let weight = weights.vector(id, Role::NgramConv);
    let rule = ShortConv { taps, dilation: spec.size, weight, bias: None, silu: true };
    let filtered = keys;
    let before = past_of_mixer(layer);
    let batch = (spans, &mut *sequences);
    filter(tier, &rule, batch, |of| &mut of.past(l)[before..], (normed, &mut *filtered, all));
    for span in spans {
        let last = &mut sequences[span.sequence].past(l)[before + spec.conv_past(all)..];
        for &token in tokens_of(span, tokens) {
            last.rotate_left(1);
            last[spec.size - 2] = f32::from_bits(token + 1);
        }
    }
    by_rows(gated, all, |first, rows| {
        add(tier, &filtered[first * all..][..rows.len()], rows);
    });
    by_rows(hidden, all, |first, rows| add(tier, &gated[first * all..][..rows.len()], rows));
    Ok(())
}

/// sign(x) · √max(|x|, 1e-6).
fn signed_root(x: f32) -> f32 {
    // NaN stays NaN.
    let size = if x.abs() < 1e-6 { 1e-6 } else { x.abs() };
    let sign = if x == 0.0 { 0.0 } else { x.signum() };
    size.sqrt() * sign
}

#[cfg(test)]
mod tests {
    use sws_kernels::Matrix;

    use super::*;

    #[test]
    fn roots_keep_their_sign_and_have_a_least_size() {
        let cases =
            [(4.0, 2.0), (-4.0, -2.0), (0.0, 0.0), (-0.0, 0.0), (1e-9, 1e-3), (-1e-9, -1e-3)];
        for (x, expected) in cases {
            assert!((signed_root(x) - expected).abs() < 1e-9, "{x}");
        }
        assert!(signed_root(f32::NAN).is_nan());
    }

    #[test]
    fn tokens_before_a_chunk_are_those_that_are_remembered() {
        let past = [0, 8].map(f32::from_bits);
        let text = NgramText { past: &past, tokens: &[5, 6] };
        let found: Vec<_> = (0..4).map(|back| text.token(1, back)).collect();
        assert_eq!(found, [Some(6), Some(5), Some(7), None]);
    }

    /// Numbers of another program (Python, with whole numbers of any length).
    #[test]
    fn rows_are_those_of_the_formula() {
        struct Fixed([Vec<f32>; 3]);
        impl Weights for Fixed {
            fn vector(&self, _: PieceId, role: Role) -> &[f32] {
                match role {
                    Role::NgramMultipliers => &self.0[0],
                    Role::NgramSizes => &self.0[1],
                    _ => &self.0[2],
                }
            }
            fn matrix(&self, _: PieceId, _: Role) -> Option<Matrix<'_>> {
                None
            }
            fn blocks(
                &mut self,
                _: PieceId,
                _: Role,
                _: &mut dyn FnMut(usize, &Matrix<'_>),
            ) -> Result<(), SourceError> {
                Ok(())
            }
        }
        let bits = |all: &[i64]| {
            let halves = |n: &i64| [*n as u64 as u32, (*n as u64 >> 32) as u32];
            all.iter().flat_map(halves).map(f32::from_bits).collect::<Vec<f32>>()
        };
        let of = |offsets: [i64; 2]| {
            let multipliers = bits(&[0x7fff_ffff_ffff_ff01, 12_345_678_901, 77]);
            Fixed([multipliers, bits(&[53, 59]), bits(&offsets)])
        };
        let parts = vec![60, 52];
        let spec = NgramSpec { size: 3, heads: 1, dim: 1, taps: 2, end: 2, parts, numbers: None };
        let past = [0; 2].map(f32::from_bits);
        let text = NgramText { past: &past, tokens: &[9, 2, 4, 6] };
        let mut numbers = [0; 8];
        hash((1, &spec), &of([0, 53]), text, &mut numbers).unwrap();
        assert_eq!(numbers, [43, 57, 31, 84, 13, 95, 51, 56]);
        // Rows beyond the end, and before the start.
        for offsets in [[0, 112], [-60, 53]] {
            assert!(hash((1, &spec), &of(offsets), text, &mut numbers).is_err(), "{offsets:?}");
        }
    }
}
