//! Whatever a device does, the logits are those of the CPU.

use sws_gpu::DeviceError;

use crate::in_front::VramSource;
use crate::models::{Fixture, bits};
use crate::support::{Plan, Trouble, Troubled, device, turn};

/// A call of the promotions or of the run goes wrong: the first, the last, and some in between.
#[test]
fn logits_stay_the_same_when_a_device_fails() {
    let _turn = turn();
    let fixture = Fixture::open("qwen3_moe");
    let tokens = fixture.tokens();
    let expected = bits(&mut fixture.session(fixture.weights()), &tokens);
    let ids = fixture.experts();
    let run = |at: Option<(u64, Trouble)>| {
        let (device, plan) = Troubled::new(device()?);
        let mut vram = fixture.open_vram(Box::new(device), ids.len() as u64);
        *plan.lock().unwrap() = Plan { at, calls: 0 };
        for id in &ids {
            fixture.with(*id, |tensors| vram.promote(*id, tensors));
        }
        let source = VramSource { inner: fixture.weights(), vram };
        let mut session = fixture.session(source);
        assert_eq!(bits(&mut session, &tokens), expected, "{at:?}");
        let vram = &session.source().vram;
        let failure = vram.failure().cloned();
        assert!(failure.is_none() || vram.is_empty() && vram.free_slots() == 0);
        let calls = plan.lock().unwrap().calls;
        Some((calls, failure))
    };
    let Some((calls, failure)) = run(None) else { return };
    assert_eq!(failure, None);
    let mut runs = 0;
    for trouble in [Trouble::Lost, Trouble::Hung, Trouble::Full] {
        for tenth in 0..=10 {
            let at = (calls * tenth / 10).max(1);
            let (_, failure) = run(Some((at, trouble))).unwrap();
            let error = failure.expect("the call that fails");
            let matches = match trouble {
                Trouble::Lost => matches!(error, DeviceError::Lost { .. }),
                Trouble::Hung => matches!(error, DeviceError::Hung { .. }),
                _ => matches!(error, DeviceError::OutOfMemory { .. }),
            };
            assert!(matches, "{error}");
            runs += 1;
        }
    }
    eprintln!("{runs} runs that fail at one of {calls} calls: no logit differs");
}

/// A bit that changes on the way to the device, or back, is found before an expert is computed with.
#[test]
fn a_wrong_copy_is_not_computed_with() {
    let _turn = turn();
    let fixture = Fixture::open("qwen3_moe");
    let id = fixture.experts()[0];
    for trouble in [Trouble::Flip, Trouble::FlipWritten] {
        let mut wrong = 0;
        for at in 1.. {
            let Some(device) = device() else { return };
            let (device, plan) = Troubled::new(device);
            let mut vram = fixture.open_vram(Box::new(device), 1);
            *plan.lock().unwrap() = Plan { at: Some((at, trouble)), calls: 0 };
            let held = fixture.with(id, |tensors| vram.promote(id, tensors));
            assert_eq!(held, vram.holds(id));
            let Some(error) = vram.failure() else { break };
            assert!(!held && matches!(error, DeviceError::Corrupt { .. }), "{error}");
            wrong += 1;
        }
        // Gate, up and down.
        assert_eq!(wrong, 3, "{trouble:?}");
    }
}

/// Memory that changes later is found by its checksums, each of which is compared in turn.
#[test]
fn changed_memory_is_found() {
    let _turn = turn();
    let fixture = Fixture::open("qwen3_moe");
    let ids = fixture.experts();
    let Some(device) = device() else { return };
    let (device, plan) = Troubled::new(device);
    let mut vram = fixture.open_vram(Box::new(device), ids.len() as u64);
    for id in &ids {
        assert!(fixture.with(*id, |tensors| vram.promote(*id, tensors)));
    }
    let before = plan.lock().unwrap().calls;
    let tensors = fixture.read(ids[0]).len();
    for _ in 0..2 * tensors * ids.len() {
        vram.inspect().unwrap();
    }
    let inspected = plan.lock().unwrap().calls - before;
    assert_eq!(inspected, (2 * tensors * ids.len()) as u64);
    *plan.lock().unwrap() = Plan { at: Some((3, Trouble::Flip)), calls: 0 };
    let first = (0..5).map(|_| vram.inspect()).position(|found| found.is_err());
    assert_eq!(first, Some(2));
}

/// Experts come and go while the model runs.
#[test]
fn promotions_and_demotions_change_no_bit() {
    let _turn = turn();
    let fixture = Fixture::open("mixtral");
    let tokens = fixture.tokens();
    let mut alone = fixture.session(fixture.weights());
    let ids = fixture.experts();
    let Some(device) = device() else { return };
    let vram = fixture.open_vram(Box::new(device), 3);
    let source = VramSource { inner: fixture.weights(), vram };
    let mut session = fixture.session(source);
    let mut numbers = sws_gpu::SampleNumbers::new(5);
    let mut held = std::collections::BTreeSet::new();
    use sws_model::CausalLm;
    for token in &tokens[..40] {
        for _ in 0..3 {
            let id = ids[numbers.below(ids.len() as u32) as usize];
            let vram = &mut session.source().vram;
            if numbers.below(2) == 0 {
                vram.demote(id);
                held.remove(&id);
            } else if fixture.with(id, |tensors| vram.promote(id, tensors)) {
                held.insert(id);
            } else {
                assert_eq!(vram.free_slots(), 0);
            }
            assert_eq!((vram.len(), vram.failure()), (held.len(), None));
        }
        let expected: Vec<u32> =
            alone.decode(*token).unwrap().iter().map(|x| x.to_bits()).collect();
        let found: Vec<u32> = session.decode(*token).unwrap().iter().map(|x| x.to_bits()).collect();
        assert_eq!(found, expected);
    }
    assert!(!held.is_empty());
}
