//! Detection of weights that are NaN or infinite.

use super::{Encoding, Matrix, nvfp4, reference};

impl Matrix<'_> {
    /// The row, column and value of the first weight in view that is not finite.
    ///
    /// A quick scan of the parts shows whether there can be one; weights are decoded only then.
    pub fn first_not_finite(&self) -> Option<(usize, usize, f32)> {
        if !reference::may_hold_one(self) {
            return None;
        }
        if let Encoding::Nvfp4(scale) = self.encoding()
            && let Some(number) = nvfp4::reference::infinite_divisor(scale, self)
        {
            return Some((0, 0, number));
        }
        let mut row = vec![0.0; self.cols()];
        (0..self.row_count()).find_map(|r| {
            self.decode_row(r, &mut row);
            row.iter().position(|w| !w.is_finite()).map(|col| (r, col, row[col]))
        })
    }
}
