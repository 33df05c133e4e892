//! Repacks matrices of AWQ and GPTQ, so that codes, scales and zero points are stored row by row.

use rayon::prelude::*;
use sws_format::{Geometry, Packing, Tensor};
use sws_kernels::Encoding;

use super::{EncodeWorker, STEP, SourceMatrix};
use crate::ShardError;
use crate::direct::{SourceFile, buffer};
use crate::packed;
use crate::parts::{PartWriter, TensorTarget};
use crate::plan::WINDOW;

impl EncodeWorker<'_> {
    /// Writes a packed matrix. Its numbers do not change.
    pub(super) fn repack(
        &mut self,
        tensor: &Tensor,
        packing: Packing,
        target: &mut TensorTarget,
    ) -> Result<Tensor, ShardError> {
        let geometry = Geometry::of_tensor(packing, tensor);
        let Some(geometry) = geometry else {
            return Err(self.unfit(tensor, 0, "which its scales do not fit".to_owned()));
        };
        let job = RepackJob { tensor, packing, geometry };
        let mut parts = vec![self.codes(&job, target)?, self.groups(&job, target)?];
        // The order of columns is checked even if it is not stored.
        let order = self.order(&job)?;
        if job.has_order() {
            let mut extent = PartWriter::begin(tensor, 2, order.len() as u64, target);
            extent.write(target.out, &order)?;
            parts.push(extent.end(target.out)?);
        }
        Ok(Tensor { parts, ..tensor.clone() })
    }

    /// Writes the codes. In GPTQ an integer holds columns of one row, so its bytes are part of that
    /// row.
    fn codes(
        &mut self,
        job: &RepackJob,
        target: &mut TensorTarget,
    ) -> Result<sws_format::Extent, ShardError> {
        let &RepackJob { tensor, packing, geometry: Geometry { rows, cols, .. } } = job;
        // Rows and columns of integers.
        let (rows, cols) = match packing {
            Packing::Awq => (rows / 8, cols),
            Packing::Gptq | Packing::GptqV2 => (rows, cols / 8),
        };
        let matrix =
            SourceMatrix { tensor, encoding: Encoding::F32, rows, cols, row_len: 4 * cols };
        let mut extent = PartWriter::begin(tensor, 0, matrix.len(), target);
        self.band = 0..0;
        let step = matrix.group(STEP as u64);
        let mut row = 0;
        while row < rows {
            let count = step.min(rows - row);
            let range = self.read_rows(&matrix, row, count)?;
            let bytes = &mut self.input[range];
            if packing == Packing::Awq {
                let eights = bytes.par_chunks_mut(matrix.row_len as usize);
                let unpack = || eights.for_each_init(Vec::new, packed::rows_of_integers);
                self.context.pool.install(unpack);
            }
            extent.write(target.out, bytes)?;
            row += count;
            self.advance(count * matrix.row_len)?;
        }
        extent.end(target.out)
    }

    /// Writes the scale and the zero point of each group, row by row.
    fn groups(
        &mut self,
        job: &RepackJob,
        target: &mut TensorTarget,
    ) -> Result<sws_format::Extent, ShardError> {
        let &RepackJob { tensor, geometry, .. } = job;
        let row_len = 4 * geometry.units();
        let mut extent = PartWriter::begin(tensor, 1, geometry.rows * row_len, target);
        // Each integer has eight zero points, and is processed whole.
        let most = (WINDOW as u64 / row_len / 8).max(1) * 8;
        for first in (0..geometry.rows).step_by(most as usize) {
            let rows = first..(first + most).min(geometry.rows);
            let len = ((rows.end - rows.start) * row_len) as usize;
            self.band = 0..0;
            self.input[..len].fill(0);
            for part in [2, 1] {
                self.fill_groups(job, part, rows.clone())?;
            }
            extent.write(target.out, &self.input[..len])?;
        }
        self.advance(tensor.parts[1].len + tensor.parts[2].len)?;
        extent.end(target.out)
    }

    /// Adds the scales (part 2) or the zero points (part 1) of these rows to their groups.
    fn fill_groups(
        &mut self,
        job: &RepackJob,
        part: usize,
        rows: std::ops::Range<u64>,
    ) -> Result<(), ShardError> {
        let &RepackJob { tensor, packing, geometry } = job;
        let line = tensor.parts[part].len / geometry.groups;
        // A line is at most half as long as a step.
        let together = (STEP as u64 / line).clamp(1, geometry.groups);
        let slot = match &mut self.lines {
            Some(slot) => slot,
            none => none.insert(buffer(SourceFile::room(STEP))?),
        };
        for group in (0..geometry.groups).step_by(together as usize) {
            let count = together.min(geometry.groups - group);
            let from = &tensor.parts[part];
            let offset = from.offset + group * line;
            let len = (count * line) as usize;
            let range = self.context.read(from.file, offset, len, slot)?;
            for (group, line) in (group..).zip(slot[range].chunks_exact(line as usize)) {
                let numbers =
                    packed::GroupLine { packing, dtype: tensor.origins[part].dtype, line };
                let row_units = self.input.chunks_exact_mut(4 * geometry.units() as usize);
                for (row, units) in rows.clone().zip(row_units) {
                    let Some(bits) = numbers.bits(row) else {
                        let found = numbers.scale(row);
                        let reason = format!("where row {row} has a scale that is {found}");
                        return Err(self.unfit(tensor, 2, reason));
                    };
                    let each = geometry.units_per_group() as usize;
                    let units = units.as_chunks_mut::<4>().0.iter_mut();
                    for unit in units.skip(group as usize * each).take(each) {
                        *unit = (u32::from_le_bytes(*unit) | bits).to_le_bytes();
                    }
                }
            }
        }
        Ok(())
    }

    /// The group of each column in shards. Fails if a column has no valid group, or if columns
    /// should be in order and are not.
    fn order(&mut self, job: &RepackJob) -> Result<Vec<u8>, ShardError> {
        let &RepackJob { tensor, geometry, .. } = job;
        let Some(part) = tensor.parts.get(3) else { return Ok(Vec::new()) };
        let range = self.read(part.file, part.offset, part.len as usize)?;
        let mut order = Vec::with_capacity(part.len as usize / 2);
        for (col, &group) in (0..).zip(self.input[range].as_chunks::<4>().0) {
            let group = i32::from_le_bytes(group);
            let known = u64::try_from(group).ok().filter(|&group| group < geometry.groups);
            let Some(known) = known else {
                let groups = geometry.groups;
                let last = geometry.groups - 1;
                let reason = match groups {
                    1 => format!("which gives column {col} the group {group} of one"),
                    _ => format!("which gives column {col} the group {group} of 0 to {last}"),
                };
                return Err(self.unfit(tensor, 3, reason));
            };
            if !job.has_order() && known != geometry.group_in_order(col) {
                let reason = format!(
                    "which gives column {col} the group {group}, though config.json says that \
                     columns are in order (`desc_act`)"
                );
                return Err(self.unfit(tensor, 3, reason));
            }
            // The group number fits 16 bits: there are at most 2²⁰ columns, in units of at least
            // 32.
            order.extend(((known * geometry.units_per_group()) as u16).to_le_bytes());
        }
        self.advance(part.len)?;
        Ok(order)
    }

    fn unfit(&self, tensor: &Tensor, part: usize, reason: String) -> ShardError {
        let origin = tensor.origins.get(part).map_or(&tensor.name, |origin| &origin.name);
        let path = self.context.dir.join(&tensor.source);
        ShardError::Packed { path, tensor: origin.clone(), reason }
    }
}

/// A packed matrix.
struct RepackJob<'a> {
    tensor: &'a Tensor,
    packing: Packing,
    geometry: Geometry,
}

impl RepackJob<'_> {
    /// True if shards store the order of columns.
    fn has_order(&self) -> bool {
        self.tensor.encoding == Some(self.geometry.encoding(true)) && self.geometry.groups > 1
    }
}
