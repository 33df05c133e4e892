//! Model check of slot ownership: the lanes of a store, and a caller that fetches, promotes,
//! cancels and closes, under many schedules. Only the device is simulated; all other code is the
//! real one.

use std::collections::HashMap;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use sws_format::{Dtype, Extent, FileEntry, ModelIdentity, Piece, PieceId, Tensor, checksum};
use sws_kernels::Encoding;

use super::*;
use crate::SLOT_ALIGN;

const FETCHES: usize = 4;
const LANES: usize = 2;
/// Chunks per fetch.
const CHUNKS: usize = 3;
const LEN: usize = CHUNKS * SLOT_ALIGN;
/// Bytes that the first of two checksums covers.
const FIRST: usize = 2 * SLOT_ALIGN;
/// Byte that the caller writes into a returned slot. No file contains it.
const MINE: u8 = 0xff;

/// A device that is interrupted in the middle of a read.
struct Halting {
    fails: bool,
}

impl ShardReader for Halting {
    fn name(&self) -> &'static str {
        "halting"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        let middle = into.len() / 2;
        into[..middle].fill(file as u8);
        thread::yield_now();
        into[middle..].fill(file as u8);
        match self.fails && file == 0 && offset > 0 {
            true => Err(std::io::ErrorKind::Other.into()),
            false => Ok(into.len()),
        }
    }
}

/// Pieces in one file each, filled with the number of the file.
fn manifest() -> Manifest {
    let piece = |n: usize| {
        let bytes = vec![n as u8; LEN];
        let len = LEN as u64;
        let checks = bytes.chunks(FIRST).map(checksum).collect();
        let part = Extent { file: n as u32, offset: 0, len, check_len: FIRST as u64, checks };
        let tensor = Tensor {
            name: format!("tensor.{n}"),
            dtype: Dtype::BF16,
            shape: vec![1, len / 2],
            transposed: false,
            packing: None,
            slice: None,
            source: "model.safetensors".into(),
            encoding: Some(Encoding::Bf16),
            parts: vec![part],
            origins: Vec::new(),
            error: None,
        };
        Piece { id: PieceId::expert(0, n as u32), tensors: vec![tensor], stand_in: None }
    };
    let file = |n| FileEntry { path: format!("f{n}"), len: LEN as u64 };
    Manifest {
        model: ModelIdentity { model_type: "test".into(), fingerprint: "00".into() },
        encoding: None,
        files: (0..FETCHES).map(file).collect(),
        pieces: (0..FETCHES).map(piece).collect(),
        copies: Vec::new(),
    }
}

/// Fetches at every priority, promotes one fetch, cancels two, and waits for the others or closes
/// the store while they run. With a copy on another drive, which fails, nothing else does.
fn caller(manifest: &Arc<Manifest>, [fails, close_early, copy]: [bool; 3]) {
    let mirror = copy.then(|| Mirror {
        dir: PathBuf::new(),
        reader: Arc::new(Halting { fails: true }),
        files: vec![true; FETCHES],
        simulated: None,
    });
    let options = StoreOptions {
        reader: Some(Arc::new(Halting { fails })),
        mirrors: mirror.into_iter().collect(),
        depth: LANES,
        chunk: SLOT_ALIGN,
        cache: None,
        clock: Clock::simulated(),
        ..StoreOptions::default()
    };
    let store = NVMeWeightStore::open(Arc::clone(manifest), Path::new(""), options).unwrap();
    let completions = store.completions().clone();
    let arena = Arena::new((FETCHES + 1) * LEN).unwrap();
    let priorities = [Priority::Demanded, Priority::Ahead, Priority::Speculative];
    // Fetches that have not ended, with the piece that each reads.
    let mut open = HashMap::new();
    let mut tickets = Vec::new();
    for n in 0..FETCHES {
        let layout = store.layout(Read::Piece(PieceId::expert(0, n as u32))).unwrap();
        let slot = arena.take(LEN).unwrap();
        let ticket = store.fetch(layout, priorities[n % priorities.len()], slot).unwrap();
        tickets.push(ticket);
        open.insert(ticket, n);
    }
    store.promote(tickets[2]);

    let mut stopping = Vec::new();
    // Returned slots. Their fill reveals any later read into them.
    let mut back = Vec::new();
    let mut keep = |mut slot: Slot| {
        slot.fill(MINE);
        back.push(slot);
    };
    for &ticket in &tickets[1..3] {
        match store.cancel(ticket) {
            Cancelled::Withdrawn(slot) => {
                open.remove(&ticket).expect("withdrawn after it completed");
                keep(slot);
            }
            Cancelled::Stopping => stopping.push(ticket),
            Cancelled::Finished => {}
        }
    }
    let mut end = |completion: Completion| {
        let n = open.remove(&completion.ticket).expect("completed twice or after withdrawal");
        match completion.result {
            Ok(()) => {
                assert!(!stopping.contains(&completion.ticket), "it was stopped");
                assert!(completion.slot.iter().all(|&byte| byte == n as u8), "all has been read");
            }
            Err(FetchError::Cancelled) => {
                assert!(close_early || stopping.contains(&completion.ticket), "{n} not cancelled");
            }
            Err(error) => assert!(fails && n == 0, "{error}"),
        }
        keep(completion.slot);
        !open.is_empty()
    };
    let mut more = true;
    let timeout = if close_early { Duration::ZERO } else { Duration::MAX };
    match store.landed(tickets[0], FIRST, timeout) {
        Ok(landed) => {
            for _ in 0..CHUNKS {
                assert!(landed.iter().all(|&byte| byte == 0), "all of it has been read");
                if let Ok(completion) = completions.try_recv() {
                    assert_ne!(completion.ticket, tickets[0], "it ends while it is lent");
                    more = end(completion);
                }
                thread::yield_now();
            }
        }
        Err(why) => assert!(why == NotLanded::Over || close_early, "woken too early"),
    }
    if !close_early {
        while more {
            match completions.try_recv() {
                Ok(completion) => more = end(completion),
                Err(_) => thread::yield_now(),
            }
        }
        // By now all lanes may be asleep; one more fetch must wake one.
        let layout = store.layout(Read::Piece(PieceId::expert(0, 1))).unwrap();
        let slot = arena.take(LEN).unwrap();
        let ticket = store.fetch(layout, Priority::Speculative, slot).unwrap();
        let last = loop {
            match completions.try_recv() {
                Ok(completion) => break completion,
                Err(_) => thread::yield_now(),
            }
        };
        assert_eq!(last.ticket, ticket, "an earlier fetch completed again");
        last.result.unwrap();
        let stats = store.stats();
        assert_eq!((stats.queued, stats.mismatches), (0, 0));
    }
    drop(store);
    assert!(close_early || completions.is_empty(), "completed after the last");
    completions.try_iter().for_each(|completion| _ = end(completion));
    assert_eq!(back.len(), FETCHES, "every slot is back");
    assert!(back.iter().all(|slot| slot.iter().all(|&byte| byte == MINE)), "read into afterwards");
    drop(back);
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn every_slot_comes_back_once_and_never_while_it_is_read() {
    // Enough to find each of three planted bugs: a slot handed back while it is read, a fetch ended
    // before its last chunk, and a lane that is never woken.
    const SCHEDULES: usize = 300;
    let manifest = Arc::new(manifest());
    const NO: bool = false;
    const YES: bool = true;
    for case in
        [[NO, NO, NO], [YES, NO, NO], [NO, YES, NO], [YES, YES, NO], [NO, NO, YES], [NO, YES, YES]]
    {
        let schedulers: [Box<dyn Scheduler + Send>; 2] = [
            Box::new(RandomScheduler::new_from_seed(7, SCHEDULES)),
            Box::new(PctScheduler::new_from_seed(7, 3, SCHEDULES)),
        ];
        for scheduler in schedulers {
            let mut config = Config::new();
            config.stack_size = 1 << 18;
            // This bounds the wait of a caller whose completion never arrives.
            config.max_steps = MaxSteps::FailAfter(20_000);
            let manifest = Arc::clone(&manifest);
            Runner::new(scheduler, config).run(move || caller(&manifest, case));
        }
    }
}
