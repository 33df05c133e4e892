//! Restores the tensors of packed matrices.

use std::ops::Range;

use sws_format::{Geometry, Packing, PieceId, Tensor};

use super::{BAND, RangedPart, STEP, UnshardWork};
use crate::ShardError;
use crate::direct::ShardOutput;
use crate::packed::{integers_of_rows, scale_of};
use crate::transpose::Lines;

impl UnshardWork<'_> {
    /// Writes one of the original tensors of a packed matrix, by its index among the origins.
    pub(super) fn pack(
        &self,
        piece: PieceId,
        tensor: &Tensor,
        origin: usize,
        out: &mut ShardOutput,
    ) -> Result<(), ShardError> {
        let Some(packing) = tensor.packing else { return Err(self.damaged(piece, tensor)) };
        let Some(geometry) = Geometry::of_tensor(packing, tensor) else {
            return Err(self.damaged(piece, tensor));
        };
        let job = RestoreJob { piece, tensor, packing, geometry };
        match origin {
            0 => self.pack_codes(&job, out),
            3 => self.pack_order(&job, out),
            _ => self.pack_groups(&job, origin, out),
        }
    }

    /// Writes codes. As many lines of the file as fit in memory are written at a time, and all rows
    /// are read for them.
    fn pack_codes(&self, job: &RestoreJob, out: &mut ShardOutput) -> Result<(), ShardError> {
        let Geometry { rows, cols, .. } = job.geometry;
        // Number of shard rows that share an integer, and number of lines of the file.
        let (together, lines) = match job.packing {
            Packing::Awq => (8, cols),
            Packing::Gptq | Packing::GptqV2 => (1, cols / 8),
        };
        let line = (rows / together) as usize * 4;
        let row_len = lines as usize * 4;
        let most = (BAND / line).clamp(1, lines as usize);
        let step = (STEP as usize / row_len).max(1) as u64;
        let mut band = vec![0; most * line];
        let mut copy = Vec::new();
        let mut part = self.part(job, 0)?;
        for first in (0..lines as usize).step_by(most) {
            let band = &mut band[..most.min(lines as usize - first) * line];
            for row in (0..rows / together).step_by(step as usize) {
                let end = (row + step).min(rows / together);
                let range = row * row_len as u64..end * row_len as u64;
                let mut bytes = self.read(job, &mut part, range)?;
                if job.packing == Packing::Awq {
                    let eights = bytes.chunks_exact_mut(row_len);
                    for rows in eights {
                        integers_of_rows(&mut copy, rows);
                    }
                }
                let rows = Lines { bytes: &bytes, step: row_len, from: first * 4, size: 4 };
                rows.write_columns(self.pool, band, line, row as usize);
            }
            out.write(band)?;
            (self.report)(band.len() as u64);
        }
        Ok(())
    }

    /// Writes scales or zero points, as many groups at a time as fit in memory.
    fn pack_groups(
        &self,
        job: &RestoreJob,
        origin: usize,
        out: &mut ShardOutput,
    ) -> Result<(), ShardError> {
        let Geometry { rows, groups, .. } = job.geometry;
        let origin = &job.tensor.origins[origin];
        let zeros = origin.dtype == sws_format::Dtype::I32;
        let line = (if zeros { rows / 2 } else { rows * 2 }) as usize;
        let row_len = 4 * job.geometry.units();
        let most = (BAND / line).clamp(1, groups as usize);
        let step = (STEP / row_len / 8).max(1) * 8;
        let mut band = vec![0; most * line];
        let mut part = self.part(job, 1)?;
        for first in (0..groups as usize).step_by(most) {
            let band = &mut band[..most.min(groups as usize - first) * line];
            band.fill(0);
            for row in (0..rows).step_by(step as usize) {
                let range = row * row_len..(row + step).min(rows) * row_len;
                let bytes = self.read(job, &mut part, range)?;
                for (row, units) in (row..).zip(bytes.chunks_exact(row_len as usize)) {
                    let each = job.geometry.units_per_group() as usize;
                    let units = units.as_chunks().0.iter().step_by(each).skip(first);
                    for (unit, line) in units.zip(band.chunks_exact_mut(line)) {
                        let unit = u32::from_le_bytes(*unit);
                        if zeros {
                            let eight = &mut line.as_chunks_mut().0[(row / 8) as usize];
                            let zero = (unit & 15) << (4 * job.packing.place(row));
                            *eight = (u32::from_le_bytes(*eight) | zero).to_le_bytes();
                        } else {
                            line.as_chunks_mut().0[row as usize] = scale_of(unit, origin.dtype);
                        }
                    }
                }
            }
            if zeros {
                for eight in band.as_chunks_mut().0 {
                    let stored = u32::from_le_bytes(*eight).wrapping_sub(job.packing.offset());
                    *eight = stored.to_le_bytes();
                }
            }
            out.write(band)?;
            (self.report)(band.len() as u64);
        }
        Ok(())
    }

    /// Writes the group of each column.
    fn pack_order(&self, job: &RestoreJob, out: &mut ShardOutput) -> Result<(), ShardError> {
        let geometry = job.geometry;
        let order = match job.tensor.parts.get(2) {
            Some(extent) => Some(self.read(job, &mut self.part(job, 2)?, 0..extent.len)?),
            None => None,
        };
        let mut bytes = Vec::new();
        for col in 0..geometry.cols {
            let group = match &order {
                Some(order) => {
                    let unit = u16::from_le_bytes(order.as_chunks().0[col as usize]);
                    u64::from(unit) / geometry.units_per_group()
                }
                None => geometry.group_in_order(col),
            };
            bytes.extend((group as i32).to_le_bytes());
        }
        out.write(&bytes)?;
        (self.report)(bytes.len() as u64);
        Ok(())
    }

    fn part<'t>(&self, job: &RestoreJob<'t>, index: usize) -> Result<RangedPart<'t>, ShardError> {
        let extent = &job.tensor.parts[index];
        Ok(RangedPart::new(self.open(extent)?, extent))
    }

    /// Reads bytes of a part. Damaged ones are an error.
    fn read(
        &self,
        job: &RestoreJob,
        part: &mut RangedPart,
        range: Range<u64>,
    ) -> Result<Vec<u8>, ShardError> {
        part.read(range)?.ok_or_else(|| self.damaged(job.piece, job.tensor))
    }
}

/// A packed matrix, one of whose tensors is restored.
struct RestoreJob<'a> {
    piece: PieceId,
    tensor: &'a Tensor,
    packing: Packing,
    geometry: Geometry,
}
