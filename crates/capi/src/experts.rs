//! The store of experts alone: open, fetch, hold, release, close.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::slice::from_raw_parts_mut;
use std::sync::{Mutex, MutexGuard};

use library::PieceId;

use crate::border::{guarded, object, output, sentence, string};
use crate::expert_store::ExpertStore;

/// Experts of a model within a budget of bytes, for an engine that computes with them itself.
pub struct sws_store(Mutex<HeldExperts>);

/// A store, and the experts that are held.
struct HeldExperts {
    store: ExpertStore,
    held: HashMap<PieceId, HeldExpert>,
}

/// An expert that is held.
struct HeldExpert {
    /// Number of holds that are not released.
    holds: usize,
    view: Box<ExpertView>,
}

/// An expert as C sees it, and the memory to which that leads, besides the store's.
struct ExpertView {
    seen: sws_expert,
    _tensors: Box<[sws_tensor]>,
    _parts: Vec<Box<[sws_part]>>,
    _names: Vec<CString>,
}

// SAFETY: its pointers lead to memory of its own, and of the slot, which the store keeps while this exists;
// none of it is written to.
unsafe impl Send for ExpertView {}

/// A range of bytes.
#[repr(C)]
pub struct sws_part {
    /// The first of the bytes.
    pub bytes: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// A matrix of an expert. Its bytes are those of the shards: one part, or as many as its encoding has.
#[repr(C)]
pub struct sws_tensor {
    /// Name in the checkpoint.
    pub name: *const c_char,
    /// Name of the encoding, such as bf16; empty for a tensor that no kernel supports.
    pub encoding: *const c_char,
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub cols: u64,
    /// The parts of the encoding.
    pub parts: *const sws_part,
    /// Number of parts.
    pub part_count: usize,
}

/// An expert that is held: its tensors.
#[repr(C)]
pub struct sws_expert {
    /// Its layer.
    pub layer: u32,
    /// Its number in the layer.
    pub expert: u32,
    /// The tensors, in the order of the shards: gate, up, down.
    pub tensors: *const sws_tensor,
    /// Number of tensors.
    pub tensor_count: usize,
}

/// Sizes of a store.
#[repr(C)]
pub struct sws_shape {
    /// Layers of the model, some of which may have no experts.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Bytes that an expert takes in the store.
    pub expert_bytes: u64,
    /// Number of experts that the store has room for.
    pub room: u64,
}

/// Opens the experts of a model, and takes `bytes` for those in memory. Returns NULL on failure.
///
/// Besides, a store takes a few MiB for its threads and for the names and places of all weights.
///
/// # Safety
///
/// `model` is null or leads to a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_store_open(model: *const c_char, bytes: u64) -> *mut sws_store {
    guarded(null_mut(), || {
        // SAFETY: a string, as the caller vouches.
        let name = unsafe { string(model, "model") }?;
        let store = ExpertStore::open(name, bytes)?;
        let store = sws_store(Mutex::new(HeldExperts { store, held: HashMap::new() }));
        Ok(Box::into_raw(Box::new(store)))
    })
}

/// Fills in the sizes of a store. Returns 0, or -1 on failure.
///
/// # Safety
///
/// The store is open; `shape` is null or leads to a shape, which is filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_store_shape(store: *const sws_store, shape: *mut sws_shape) -> c_int {
    guarded(-1, || {
        // SAFETY: an open store, as the caller vouches.
        let store = unsafe { object(store, "store") }?;
        let shape = output(shape, "shape")?;
        let HeldExperts { store, .. } = &*locked(store)?;
        let (len, slots) = store.slots();
        let sizes = sws_shape {
            layers: store.layers as u32,
            experts: store.experts as u32,
            expert_bytes: len as u64,
            room: slots as u64,
        };
        // SAFETY: memory of a shape, as the caller vouches.
        unsafe { shape.write(sizes) };
        Ok(0)
    })
}

/// Begins to read an expert in the background, unless it is in memory. It may evict the one that was used
/// longest ago and is not held; if all others are held or in flight, it first waits for a read. Returns 0, or
/// -1 on failure.
///
/// # Safety
///
/// The store is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_store_fetch(
    store: *const sws_store,
    layer: u32,
    expert: u32,
) -> c_int {
    guarded(-1, || {
        // SAFETY: an open store, as the caller vouches.
        let store = unsafe { object(store, "store") }?;
        locked(store)?.store.fetch(PieceId::expert(layer, expert))?;
        Ok(0)
    })
}

/// Waits until an expert is in memory, and returns it; NULL on failure. It stays where it is until each hold of
/// it is released. Every byte was verified, in a checkpoint in place from its second reading on.
///
/// # Safety
///
/// The store is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_store_hold(
    store: *const sws_store,
    layer: u32,
    expert: u32,
) -> *const sws_expert {
    guarded(null(), || {
        // SAFETY: an open store, as the caller vouches.
        let store = unsafe { object(store, "store") }?;
        let HeldExperts { store, held } = &mut *locked(store)?;
        let id = PieceId::expert(layer, expert);
        store.hold(id)?;
        let held = match held.entry(id) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(place) => match ExpertView::of(store, id, layer, expert) {
                Some(view) => place.insert(HeldExpert { holds: 0, view: Box::new(view) }),
                None => {
                    store.release(id);
                    return Err("the expert has no bytes, which is a bug: please report it".into());
                }
            },
        };
        held.holds += 1;
        Ok(&raw const held.view.seen)
    })
}

/// Decodes a row of a tensor of an expert that is held into `len` numbers, the columns of the tensor. Returns
/// 0, or -1 on failure, with nothing written.
///
/// # Safety
///
/// The store is open; `numbers` is null or leads to `len` numbers, which are filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_store_row(
    store: *const sws_store,
    expert: *const sws_expert,
    tensor: usize,
    row: u64,
    numbers: *mut f32,
    len: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: an open store, as the caller vouches.
        let store = unsafe { object(store, "store") }?;
        let numbers = output(numbers, "numbers")?;
        let HeldExperts { store, held } = &*locked(store)?;
        let (&id, _) = find(held, expert)?;
        let (layout, slot) = store.bytes(id).ok_or("the expert is gone")?;
        let tensors = layout.tensors();
        let Some(layout) = tensors.get(tensor) else {
            return Err(format!("the expert has {} tensors and no number {tensor}", tensors.len()));
        };
        let matrix = layout.matrix(slot).ok_or("no kernel decodes the tensor; take its bytes")?;
        let matrix = matrix.map_err(sentence)?;
        let rows = matrix.row_count();
        let row = match usize::try_from(row) {
            Ok(row) if row < rows => row,
            _ => return Err(format!("the tensor has {rows} rows")),
        };
        if len != matrix.cols() {
            return Err(format!("a row of the tensor has {} numbers, not {len}", matrix.cols()));
        }
        // SAFETY: so many numbers of the caller's, as it vouches, no more than a row has, and zeros from here on.
        let numbers = unsafe {
            numbers.write_bytes(0, len);
            from_raw_parts_mut(numbers.as_ptr(), len)
        };
        matrix.decode_row(row, numbers);
        Ok(0)
    })
}

/// Ends a hold of an expert. Returns 0, or -1 if it is not held by this store.
///
/// # Safety
///
/// The store is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_store_release(
    store: *const sws_store,
    expert: *const sws_expert,
) -> c_int {
    guarded(-1, || {
        // SAFETY: an open store, as the caller vouches.
        let store = unsafe { object(store, "store") }?;
        let HeldExperts { store, held } = &mut *locked(store)?;
        let (&id, _) = find(held, expert)?;
        store.release(id);
        if let Some(expert) = held.get_mut(&id) {
            expert.holds -= 1;
            if expert.holds == 0 {
                held.remove(&id);
            }
        }
        Ok(0)
    })
}

/// Closes a store, with all that is held, and frees its memory. NULL is ignored.
///
/// # Safety
///
/// The store is null, or was opened and not closed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_store_close(store: *mut sws_store) {
    guarded((), || {
        if !store.is_null() {
            // SAFETY: made by `sws_store_open`, and not closed, as the caller vouches.
            drop(unsafe { Box::from_raw(store) });
        }
        Ok(())
    });
}

fn locked(store: &sws_store) -> Result<MutexGuard<'_, HeldExperts>, String> {
    let Ok(held) = store.0.lock() else {
        return Err("the store has failed before; close it".to_owned());
    };
    Ok(held)
}

/// The held expert to which a pointer leads. It is compared only, never followed.
fn find(
    held: &HashMap<PieceId, HeldExpert>,
    expert: *const sws_expert,
) -> Result<(&PieceId, &HeldExpert), String> {
    for (id, held) in held {
        if std::ptr::eq(&raw const held.view.seen, expert) {
            return Ok((id, held));
        }
    }
    Err("the store holds no such expert; give one that is not released".to_owned())
}

impl ExpertView {
    /// A view of an expert that is in memory.
    fn of(store: &ExpertStore, id: PieceId, layer: u32, expert: u32) -> Option<ExpertView> {
        let (layout, slot) = store.bytes(id)?;
        let mut tensors = Vec::new();
        let mut all_parts = Vec::new();
        let mut names = Vec::new();
        for tensor in layout.tensors() {
            let parts = tensor.parts(slot)?;
            let parts = parts.iter().map(|part| sws_part { bytes: part.as_ptr(), len: part.len() });
            let parts: Box<[sws_part]> = parts.collect();
            let encoding = tensor.encoding.map_or(String::new(), |encoding| encoding.to_string());
            let name = CString::new(tensor.name.replace('\0', " ")).ok()?;
            let encoding = CString::new(encoding).ok()?;
            tensors.push(sws_tensor {
                name: name.as_ptr(),
                encoding: encoding.as_ptr(),
                rows: tensor.rows,
                cols: tensor.cols,
                parts: parts.as_ptr(),
                part_count: parts.len(),
            });
            all_parts.push(parts);
            names.extend([name, encoding]);
        }
        let tensors: Box<[sws_tensor]> = tensors.into();
        let seen =
            sws_expert { layer, expert, tensors: tensors.as_ptr(), tensor_count: tensors.len() };
        Some(ExpertView { seen, _tensors: tensors, _parts: all_parts, _names: names })
    }
}
