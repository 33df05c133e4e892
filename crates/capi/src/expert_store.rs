//! Experts of a model in a fixed number of bytes.

use std::collections::HashMap;

use library::{Model, NVMeWeightStore, PieceId, PieceKind, ReaderKind};
use sws_cache::policy::Lru;
use sws_cache::{Lookup, Need, NoRoom, PredictiveCache};
use sws_store::{Arena, Completion, PieceLayout, Priority, Read, Slot, Ticket};

use crate::border::sentence;

/// Experts of a model, read into slots of equal length. Those used longest ago are evicted, and those that
/// are held stay.
pub(crate) struct ExpertStore {
    store: NVMeWeightStore,
    cache: PredictiveCache<Slot>,
    /// Length of a slot, which is that of the longest expert.
    slot_len: usize,
    /// Reads in flight.
    tickets: HashMap<PieceId, Ticket>,
    /// Sentences about reads that have failed, until somebody asks.
    failures: HashMap<PieceId, String>,
    pub(crate) layers: usize,
    pub(crate) experts: usize,
}

impl ExpertStore {
    /// Opens the experts of a model, as many of which are in memory as the bytes have room for.
    pub(crate) fn open(name: &str, bytes: u64) -> Result<ExpertStore, String> {
        let model = Model::open(name).map_err(sentence)?;
        let manifest = model.manifest();
        let mut count = 0;
        let mut slot_len = 0;
        for piece in &manifest.pieces {
            if !matches!(piece.id.kind(), PieceKind::Expert(_)) {
                continue;
            }
            let layout = PieceLayout::new(manifest, Read::Piece(piece.id));
            let layout = layout.map_err(|error| model.error(error).to_string())?;
            slot_len = slot_len.max(layout.slot_len());
            count += 1;
        }
        if count == 0 {
            return Err(format!("`{name}` has no experts; name a Mixture-of-Experts model"));
        }
        let slots = usize::try_from(bytes / slot_len as u64).unwrap_or(usize::MAX).min(count);
        if slots == 0 {
            return Err(format!(
                "{bytes} bytes have no room for an expert of `{name}`, which takes {slot_len}; give as many at least"
            ));
        }
        let bytes = slots * slot_len;
        let arena = match Arena::new(bytes) {
            Ok(arena) => arena,
            Err(e) => return Err(format!("the system grants no {bytes} bytes for experts: {e}")),
        };
        let payloads = (0..slots).map_while(|_| Some((slot_len, arena.take(slot_len)?)));
        let cache = PredictiveCache::new(Box::new(Lru::new()), payloads);
        let store = model.store(ReaderKind::Direct).map_err(sentence)?;
        Ok(ExpertStore {
            store,
            cache,
            slot_len,
            tickets: HashMap::new(),
            failures: HashMap::new(),
            layers: model.spec().layers.len(),
            experts: model.spec().moes().map(|moe| moe.experts).max().unwrap_or(0),
        })
    }

    /// Length and number of slots.
    pub(crate) fn slots(&self) -> (usize, usize) {
        (self.slot_len, self.cache.slots())
    }

    /// Begins to read an expert, unless it is in memory or in flight.
    pub(crate) fn fetch(&mut self, expert: PieceId) -> Result<(), String> {
        self.failures.remove(&expert);
        self.request(expert, Priority::Ahead)
    }

    /// Waits until an expert is in memory, and keeps it there until it is [released](Self::release) as often as
    /// it was held.
    pub(crate) fn hold(&mut self, expert: PieceId) -> Result<(), String> {
        if let Some(&ticket) = self.tickets.get(&expert) {
            self.store.promote(ticket);
        }
        self.cache.lookup(expert);
        loop {
            match self.cache.find(expert) {
                Lookup::Ready => break,
                Lookup::Loading => self.wait()?,
                Lookup::Absent => match self.failures.remove(&expert) {
                    Some(sentence) => return Err(sentence),
                    None => self.request(expert, Priority::Demanded)?,
                },
            }
        }
        self.cache.pin(expert);
        Ok(())
    }

    /// Ends a hold of an expert.
    pub(crate) fn release(&mut self, expert: PieceId) {
        self.cache.unpin(expert);
    }

    /// The bytes of an expert in memory, and where they are.
    pub(crate) fn bytes(&self, expert: PieceId) -> Option<(std::sync::Arc<PieceLayout>, &Slot)> {
        Some((self.store.layout(Read::Piece(expert)).ok()?, self.cache.get(expert)?))
    }

    fn request(&mut self, expert: PieceId, priority: Priority) -> Result<(), String> {
        while let Ok(completion) = self.store.completions().try_recv() {
            self.land(completion);
        }
        if self.cache.contains(expert) {
            return Ok(());
        }
        let layout = self.store.layout(Read::Piece(expert)).map_err(sentence)?;
        let layer = expert.layer().unwrap_or(0);
        let claim = loop {
            match self.cache.begin(layer, expert, layout.slot_len(), Need::Now) {
                Ok(claim) => break claim,
                Err(NoRoom::InUse { .. }) if !self.tickets.is_empty() => self.wait()?,
                Err(NoRoom::InUse { .. }) => {
                    return Err(format!(
                        "all {} experts that the store has room for are held; release one, or open it with more bytes",
                        self.cache.slots()
                    ));
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        match self.store.fetch(layout, priority, claim.payload) {
            Ok(ticket) => {
                self.tickets.insert(expert, ticket);
                Ok(())
            }
            Err(error) => {
                let sentence = error.to_string();
                self.cache.failed(expert, error.slot);
                Err(sentence)
            }
        }
    }

    /// Waits for one read.
    fn wait(&mut self) -> Result<(), String> {
        let completion = self.store.wait(self.store.completions());
        self.land(completion.ok_or("the threads that read have ended; close the store")?);
        Ok(())
    }

    /// Takes a read that has ended.
    fn land(&mut self, completion: Completion) {
        let Completion { layout, slot, result, .. } = completion;
        let expert = layout.read().piece();
        self.tickets.remove(&expert);
        match result {
            Ok(()) => {
                self.cache.ready(expert, slot);
            }
            Err(error) => {
                self.failures.insert(expert, error.to_string());
                self.cache.failed(expert, slot);
            }
        }
    }
}
