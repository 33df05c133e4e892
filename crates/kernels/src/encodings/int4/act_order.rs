//! Decoder of four-bit codes whose columns lie in any order in groups.

use crate::encodings::{Decoder, RowCursor};
use crate::scalar::{BELOW_SCALE, BLOCK};
use crate::simd::Simd;
use crate::{Encoding, Int4Groups, Matrix, ZerosGroup};

/// Act-order: groups with zero points, in which columns lie in any order.
///
/// Columns are summed in their own order, so each looks up its group. Sorting columns by group would
/// need activations in the order of each matrix, and give sums in another order.
#[derive(Clone, Copy)]
pub(in crate::encodings) struct ActOrder {
    /// The last group.
    last: usize,
}

impl<S: Simd> Decoder<S> for ActOrder {
    /// One of three, whose rows lie alike.
    const ENCODING: Encoding = Encoding::Int4(Int4Groups::ActOrder(ZerosGroup::Of128));
    const BYTES: usize = BLOCK / 2;
    const ROWS: usize = 4;
    nothing_shared!();

    #[inline(always)]
    fn new(_: S, m: &Matrix) -> Self {
        let group = match m.encoding() {
            Encoding::Int4(Int4Groups::ActOrder(group)) => group.cols() as usize,
            _ => unreachable!("an encoding without act-order"),
        };
        ActOrder { last: m.cols().div_ceil(group).saturating_sub(1) }
    }
    #[inline(always)]
    unsafe fn block(self, s: S, at: &mut RowCursor, b: usize) -> [S::F; 4] {
        let order = at.beside[2 * BLOCK * b..].first_chunk::<{ 2 * BLOCK }>();
        let order = order.expect("a whole block").as_ptr();
        let fifteen = s.splat_u(15);
        let of_scale = s.splat_u(!BELOW_SCALE);
        // SAFETY: by the contract of the trait, and a row has a unit for every group.
        let units = unsafe {
            let mut groups = [fifteen; 4];
            for k in 0..4 {
                groups[k] = s.load_u16(order.add(32 * k));
            }
            s.gather(at.scales, self.last, groups)
        };
        let mut weights = [s.splat(0.0); 4];
        for k in 0..4 {
            // SAFETY: by the contract of the trait.
            let codes = unsafe { s.load_nibbles(at.codes.add(BLOCK / 2 * b + 8 * k)) };
            let less = s.sub_u(s.and(codes, fifteen), s.and(units[k], fifteen));
            weights[k] = s.mul(s.integers(less), s.float(s.and(units[k], of_scale)));
        }
        weights
    }
}
