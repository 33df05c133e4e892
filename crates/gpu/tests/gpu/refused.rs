//! Devices with one wrong bit are refused by name.

use std::time::Duration;

use sws_gpu::{
    ComputeDevice, DeviceError, Flaw, Kernel, OpenClDevice, VramExperts, VramLedger, VramLine,
    VramShape, check,
};
use sws_kernels::{Activations, Encoding};

use crate::support::{Plan, Trouble, Troubled, device, flawed, turn};

/// Checks a device with every encoding.
fn checked(device: &mut dyn ComputeDevice) -> Result<sws_gpu::CheckedCases, DeviceError> {
    let mut ledger = VramLedger::new(1 << 30);
    let result = check(device, &Encoding::ALL, &mut ledger);
    assert_eq!(ledger.line(VramLine::Check), 0);
    result
}

#[test]
fn a_device_with_the_same_bits_passes() {
    let _turn = turn();
    let Some(mut device) = device() else { return };
    let cases = checked(&mut device).unwrap();
    eprintln!("{:?} on {}: 0 differ", cases, device.facts().name);
    let encodings = Encoding::ALL.into_iter().filter(|it| Kernel::of(*it).is_some()).count();
    assert_eq!((cases.operations, cases.rows), (30_000, encodings * 2 * 131));
}

#[test]
fn wrong_arithmetic_is_refused() {
    let _turn = turn();
    for (flaw, word) in [(Flaw::Unfused, "·"), (Flaw::Flushes, "·")] {
        let Some(mut device) = flawed(flaw) else { return };
        let error = checked(&mut device).unwrap_err();
        eprintln!("{flaw:?}: {error}");
        assert!(matches!(error, DeviceError::OtherBits { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&device.facts().name) && text.contains(word), "{text}");
    }
}

/// One bit of any result that is read back, of the operations or of a matrix.
#[test]
fn one_wrong_bit_is_refused() {
    let _turn = turn();
    let Some(device) = device() else { return };
    let (mut device, plan) = Troubled::new(device);
    let mut refused = 0;
    for at in 1.. {
        *plan.lock().unwrap() = Plan { at: Some((at, Trouble::Flip)), calls: 0 };
        match checked(&mut device) {
            Err(DeviceError::OtherBits { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
            Ok(_) => break,
        }
    }
    let encodings = Encoding::ALL.into_iter().filter(|it| Kernel::of(*it).is_some()).count();
    eprintln!("each of {refused} reads with one wrong bit is refused");
    assert_eq!(refused, 1 + encodings);
}

#[test]
fn a_kernel_that_hangs_ends_by_its_limit() {
    let _turn = turn();
    if device().is_none() {
        return;
    }
    let limit = Duration::from_millis(20);
    let mut device = OpenClDevice::open(0, limit, Flaw::Slow).unwrap();
    let error = checked(&mut device).unwrap_err();
    assert!(matches!(error, DeviceError::Hung { .. }), "{error}");
    // It answers nothing any more.
    let buffer = device.allocate(16).unwrap();
    assert!(matches!(device.write(buffer, 0, &[0; 16]), Err(DeviceError::Hung { .. })));
}

#[test]
fn rounded_activations_stay_on_the_cpu() {
    let _turn = turn();
    let Some(device) = device() else { return };
    let shape = VramShape {
        encodings: vec![Encoding::Q4],
        activations: Activations::Int8,
        slot_bytes: 4096,
        rows: 64,
        cols: 64,
        products: 16,
        experts: 1,
    };
    let error = VramExperts::open(Box::new(device), 1 << 30, &shape).unwrap_err();
    assert!(matches!(error, DeviceError::Unfit { .. }), "{error}");
}

#[test]
fn a_limit_without_room_is_refused() {
    let _turn = turn();
    let Some(mut device) = device() else { return };
    let error = check(&mut device, &[], &mut VramLedger::new(1 << 20)).unwrap_err();
    assert!(matches!(error, DeviceError::TooSmall { limit: 1048576, .. }), "{error}");
}
