//! Copies of experts in the memory of a device.

use std::collections::BTreeMap;

use sws_format::{Manifest, PieceId, PieceKind};
use sws_kernels::{Activations, Encoding};
use sws_model::{Inventory, Role};
use xxhash_rust::xxh3::xxh3_64;

use crate::check::{CHECK_ROOM, CheckedCases, check};
use crate::device::{ComputeDevice, DeviceBuffer, DeviceError};
use crate::exchange::{Exchange, ExchangeSize};
use crate::executor::ROWS_TOGETHER;
use crate::kernel::Kernel;
use crate::ledger::{VramLedger, VramLine};
use crate::matrix::{ALIGN, DeviceMatrix, MatrixBytes};
use crate::opencl::STAGING;

/// A matrix of an expert, or a bias as a matrix of one row.
#[derive(Clone, Copy, Debug)]
pub struct ExpertTensor<'a> {
    /// Its role.
    pub role: Role,
    /// Its bytes, verified.
    pub bytes: MatrixBytes<'a>,
}

/// Sizes of a model's experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VramShape {
    /// The encodings of their matrices.
    pub encodings: Vec<Encoding>,
    /// The activations that the model's products take. A device has sums of activations as they are.
    pub activations: Activations,
    /// Bytes of the largest expert on the device.
    pub slot_bytes: u64,
    /// The most rows of a matrix.
    pub rows: usize,
    /// The most columns of a matrix.
    pub cols: usize,
    /// Products that go to the device together.
    pub products: u32,
    /// Experts.
    pub experts: u64,
}

impl VramShape {
    /// The sizes of a model's experts, of those that a device has kernels for; `None` without any.
    pub fn of(
        inventory: &Inventory,
        manifest: &Manifest,
        activations: Activations,
    ) -> Option<VramShape> {
        let mut shape = VramShape {
            encodings: Vec::new(),
            activations,
            slot_bytes: 0,
            rows: 1,
            cols: 1,
            products: 2 * ROWS_TOGETHER as u32,
            experts: 0,
        };
        for id in inventory.pieces() {
            if !matches!(id.kind(), PieceKind::Expert(_)) {
                continue;
            }
            let Some(piece) = manifest.piece(id) else { continue };
            let held = inventory.piece(id);
            let matrices = || held.iter().filter(|held| bias_of(held.role).is_some());
            if matrices().next().is_none()
                || !matrices().all(|held| Kernel::of(held.encoding).is_some())
            {
                continue;
            }
            let mut bytes = 0u64;
            for held in matrices() {
                for extent in &piece.tensors[held.index].parts {
                    bytes = bytes.saturating_add(extent.len).saturating_add(ALIGN);
                }
                // A bias is an f32 for each row.
                bytes = bytes.saturating_add(4 * held.rows as u64).saturating_add(ALIGN);
                shape.rows = shape.rows.max(held.rows);
                shape.cols = shape.cols.max(held.cols);
                if !shape.encodings.contains(&held.encoding) {
                    shape.encodings.push(held.encoding);
                }
            }
            shape.slot_bytes = shape.slot_bytes.max(bytes);
            shape.experts += 1;
        }
        shape.slot_bytes = shape.slot_bytes.checked_next_multiple_of(SLOT_ALIGN)?;
        (shape.experts > 0).then_some(shape)
    }

    /// Bytes of a device's memory that suffice for every expert.
    pub fn most_bytes(&self) -> u64 {
        self.bytes(self.experts).max(CHECK_ROOM)
    }

    /// Bytes of a device's memory with so many experts: their slots, and the buffers of an exchange.
    pub fn bytes(&self, slots: u64) -> u64 {
        let exchange = ExchangeSize::of(self.products, self.rows, self.cols).bytes();
        slots.saturating_mul(self.slot_bytes).saturating_add(exchange)
    }

    /// Bytes of a device's memory for a single expert, and for the check of the device.
    pub fn least_bytes(&self) -> u64 {
        self.bytes(1).max(CHECK_ROOM)
    }

    /// The experts that have room within a limit. A device whose driver limits a single buffer may have fewer.
    pub fn room(&self, limit: u64) -> u64 {
        if limit < self.least_bytes() {
            return 0;
        }
        (limit - self.bytes(0)).checked_div(self.slot_bytes).unwrap_or(0).min(self.experts)
    }

    /// Bytes of the host's memory beside a device that holds this many experts: the exchange and what is made of its
    /// results, bytes on their way, and the tables.
    pub fn host_bytes(&self, slots: u64) -> u64 {
        let exchange = ExchangeSize::of(self.products, self.rows, self.cols).bytes();
        let chunks = self.slot_bytes / CHUNK as u64 + 3;
        // Counted uses of each expert are on the host too.
        let uses = 64 * self.experts;
        let table = 2048 + chunks * size_of::<CopiedChunk>() as u64;
        STAGING as u64 + CHUNK as u64 + 4 * exchange + slots * table + uses
    }
}

/// Slots begin at multiples of this.
const SLOT_ALIGN: u64 = 256;

/// Bytes that are written, and later compared, at a time.
const CHUNK: usize = 1 << 18;

/// Layers computed for each chunk that is compared with its checksum.
const INSPECTED_ONE_IN: u64 = 16;

/// Experts in the memory of a device, within a limit.
///
/// All memory is allocated when it is opened. After an error of the device it holds no expert any more, and
/// [`failure`](Self::failure) says why.
pub struct VramExperts {
    pub(crate) device: Box<dyn ComputeDevice>,
    pub(crate) exchange: Exchange,
    pub(crate) held: BTreeMap<PieceId, VramExpert>,
    slot_bytes: u64,
    free: Vec<VramSlot>,
    ledger: VramLedger,
    checked: CheckedCases,
    failure: Option<DeviceError>,
    /// Layers computed.
    computed: u64,
    /// The chunk that is compared next.
    inspected: (PieceId, usize),
    chunk: Vec<u8>,
}

impl std::fmt::Debug for VramExperts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VramExperts")
            .field("device", self.device.facts())
            .field("held", &self.held.len())
            .field("ledger", &self.ledger)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// Memory of one expert.
#[derive(Clone, Copy, Debug)]
struct VramSlot {
    buffer: DeviceBuffer,
    at: u64,
}

/// An expert on the device.
#[derive(Debug)]
pub(crate) struct VramExpert {
    slot: VramSlot,
    matrices: Vec<(Role, DeviceMatrix)>,
    chunks: Vec<CopiedChunk>,
}

/// Bytes on the device, and their checksum.
#[derive(Clone, Copy, Debug)]
struct CopiedChunk {
    at: u64,
    len: usize,
    hash: u64,
}

impl VramExpert {
    /// A matrix and the buffer it lies in.
    pub(crate) fn matrix(&self, role: Role) -> Option<(&DeviceMatrix, DeviceBuffer)> {
        let (_, matrix) = self.matrices.iter().find(|(of, _)| *of == role)?;
        Some((matrix, self.slot.buffer))
    }
}

impl VramExperts {
    /// Checks a device with the encodings of these experts, and allocates all slots that the limit has room for, beside the
    /// buffers of an exchange. A device with one wrong bit is refused.
    pub fn open(
        mut device: Box<dyn ComputeDevice>,
        limit: u64,
        shape: &VramShape,
    ) -> Result<VramExperts, DeviceError> {
        let device_name = device.facts().name.clone();
        if shape.activations != Activations::F32 {
            let cause = "activations are rounded to eight bits, and it has no such sums".to_owned();
            return Err(DeviceError::Unfit { device: device_name, cause });
        }
        let mut ledger = VramLedger::new(limit);
        let checked = check(&mut *device, &shape.encodings, &mut ledger)?;
        let size = ExchangeSize::of(shape.products, shape.rows, shape.cols);
        let slot_bytes = shape.slot_bytes.next_multiple_of(SLOT_ALIGN).max(SLOT_ALIGN);
        let too_small = DeviceError::TooSmall {
            device: device_name,
            limit,
            needed: size.bytes().saturating_add(slot_bytes),
        };
        if !ledger.take(VramLine::Exchange, size.bytes()) || ledger.left() < slot_bytes {
            return Err(too_small);
        }
        let exchange = Exchange::new(&mut *device, size)?;
        let mut free = Vec::new();
        loop {
            let slots = ledger.left().min(device.facts().largest) / slot_bytes;
            let bytes = slots * slot_bytes;
            if slots == 0 || !ledger.take(VramLine::Experts, bytes) {
                break;
            }
            let buffer = device.allocate(bytes)?;
            // A driver that allocates with the first use does it now.
            for at in [0, bytes - 1] {
                device.write(buffer, at, &[0])?;
            }
            free.extend((0..slots).map(|slot| VramSlot { buffer, at: slot * slot_bytes }));
        }
        if free.is_empty() {
            return Err(too_small);
        }
        free.reverse();
        Ok(VramExperts {
            device,
            exchange,
            held: BTreeMap::new(),
            slot_bytes,
            free,
            ledger,
            checked,
            failure: None,
            computed: 0,
            inspected: (PieceId::EMBED, 0),
            chunk: Vec::new(),
        })
    }

    /// The comparisons that the device passed.
    pub fn checked(&self) -> CheckedCases {
        self.checked
    }

    /// The device's memory in use.
    pub fn ledger(&self) -> &VramLedger {
        &self.ledger
    }

    /// The error after which the device is not used.
    pub fn failure(&self) -> Option<&DeviceError> {
        self.failure.as_ref()
    }

    /// Layers that were computed with an expert on the device.
    pub fn layers(&self) -> u64 {
        self.computed
    }

    /// Slots, with or without an expert.
    pub fn slots(&self) -> u64 {
        (self.free.len() + self.held.len()) as u64
    }

    /// Bytes of the slots with an expert.
    pub fn held_bytes(&self) -> u64 {
        self.held.len() as u64 * self.slot_bytes
    }

    /// Slots without an expert.
    pub fn free_slots(&self) -> usize {
        if self.failure.is_some() { 0 } else { self.free.len() }
    }

    /// The number of experts held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True if no expert is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// True if an expert is held.
    pub fn holds(&self, expert: PieceId) -> bool {
        self.held.contains_key(&expert)
    }

    /// Copies an expert into a free slot, and compares the copy. True if it is held afterwards: not without a free slot, or
    /// with an encoding that stays on the CPU, or after an error of the device.
    pub fn promote(&mut self, expert: PieceId, tensors: &[ExpertTensor<'_>]) -> bool {
        if self.holds(expert) {
            return true;
        }
        if self.failure.is_some() {
            return false;
        }
        let Some(&slot) = self.free.last() else { return false };
        let Some(placed) = self.placed(tensors, slot.at) else { return false };
        match self.copy(slot.buffer, &placed) {
            Ok(chunks) => {
                self.free.pop();
                self.held.insert(expert, VramExpert { slot, matrices: placed.matrices, chunks });
                true
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    /// True if an expert of these tensors may be held.
    pub fn takes(&self, tensors: &[ExpertTensor<'_>]) -> bool {
        self.failure.is_none() && self.placed(tensors, 0).is_some()
    }

    /// The places of an expert's tensors in a slot; `None` if it has no room for them, or they stay on the CPU.
    fn placed<'a>(&self, tensors: &[ExpertTensor<'a>], at: u64) -> Option<Placed<'a>> {
        let placed = Placed::of(tensors, at)?;
        let fits = placed.end <= at + self.slot_bytes
            && placed.matrices.iter().all(|(_, matrix)| self.exchange.fits(matrix));
        fits.then_some(placed)
    }

    /// Forgets an expert, whose slot is free then.
    pub fn demote(&mut self, expert: PieceId) {
        if let Some(held) = self.held.remove(&expert) {
            self.free.push(held.slot);
        }
    }

    /// Writes the bytes of an expert, reads them again, and returns their checksums.
    fn copy(
        &mut self,
        buffer: DeviceBuffer,
        placed: &Placed<'_>,
    ) -> Result<Vec<CopiedChunk>, DeviceError> {
        let mut chunks = Vec::new();
        let biases = placed.biases.iter().map(|(at, bytes)| (*at, bytes.as_slice()));
        for (at, bytes) in placed.parts.iter().copied().chain(biases) {
            for (bytes, at) in bytes.chunks(CHUNK).zip((at..).step_by(CHUNK)) {
                self.device.write(buffer, at, bytes)?;
                let chunk = CopiedChunk { at, len: bytes.len(), hash: xxh3_64(bytes) };
                self.compare(buffer, chunk)?;
                chunks.push(chunk);
            }
        }
        Ok(chunks)
    }

    /// Reads a chunk and compares its checksum.
    fn compare(&mut self, buffer: DeviceBuffer, chunk: CopiedChunk) -> Result<(), DeviceError> {
        self.chunk.resize(chunk.len, 0);
        self.device.read(buffer, chunk.at, &mut self.chunk)?;
        if xxh3_64(&self.chunk) == chunk.hash {
            return Ok(());
        }
        Err(DeviceError::Corrupt {
            device: self.device.facts().name.clone(),
            what: format!("{} bytes at {} have another checksum", chunk.len, chunk.at),
        })
    }

    /// Compares the next chunk of all that is held.
    pub fn inspect(&mut self) -> Result<(), DeviceError> {
        let (from, number) = self.inspected;
        let later =
            self.held.range(from..).find(|(id, held)| **id > from || number < held.chunks.len());
        let Some((&id, held)) = later.or(self.held.iter().next()) else { return Ok(()) };
        let number = if id == from && number < held.chunks.len() { number } else { 0 };
        self.inspected = (id, number + 1);
        let buffer = held.slot.buffer;
        match held.chunks.get(number) {
            Some(&chunk) => self.compare(buffer, chunk),
            None => Ok(()),
        }
    }

    /// Compares a chunk now and then.
    pub(crate) fn sample(&mut self) -> Result<(), DeviceError> {
        self.computed += 1;
        if self.computed.is_multiple_of(INSPECTED_ONE_IN) { self.inspect() } else { Ok(()) }
    }

    /// Uses the device no more.
    pub(crate) fn fail(&mut self, error: DeviceError) {
        self.held.clear();
        self.failure.get_or_insert(error);
    }
}

/// The tensors of an expert with their places in a buffer.
struct Placed<'a> {
    matrices: Vec<(Role, DeviceMatrix)>,
    parts: Vec<(u64, &'a [u8])>,
    /// Widened to f32.
    biases: Vec<(u64, Vec<u8>)>,
    end: u64,
}

impl<'a> Placed<'a> {
    /// `None` if there are no matrices, one stays on the CPU, or a bias has another length than its matrix has rows.
    fn of(tensors: &[ExpertTensor<'a>], at: u64) -> Option<Placed<'a>> {
        let mut all = Placed { matrices: vec![], parts: vec![], biases: vec![], end: at };
        for tensor in tensors {
            let Some(bias) = bias_of(tensor.role) else { continue };
            let mut matrix = DeviceMatrix::place(&tensor.bytes, all.end)?;
            all.parts.extend(matrix.parts(&tensor.bytes));
            if let Some(bias) = tensors.iter().find(|other| other.role == bias) {
                let bias = bias.bytes.matrix();
                if bias.row_count() != 1 || bias.cols() != matrix.rows() {
                    return None;
                }
                let mut row = vec![0.0; bias.cols()];
                bias.decode_row(0, &mut row);
                let at = matrix.add_bias()?;
                all.biases.push((at, row.into_iter().flat_map(f32::to_le_bytes).collect()));
            }
            all.end = matrix.end();
            all.matrices.push((tensor.role, matrix));
        }
        all.matrices.iter().any(|(role, _)| *role == Role::Down).then_some(all)
    }
}

/// The role of a matrix's bias; `None` for other roles than those of an expert's matrices.
fn bias_of(role: Role) -> Option<Role> {
    Some(match role {
        Role::Gate => Role::GateBias,
        Role::Up => Role::UpBias,
        Role::GateUp => Role::GateUpBias,
        Role::Down => Role::DownBias,
        _ => return None,
    })
}
