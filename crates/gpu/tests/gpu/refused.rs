//! Devices with one wrong bit are refused by name.

use std::time::Duration;

use sws_gpu::{
    ComputeDevice, DeviceError, Flaw, Kernel, OpenClDevice, VramLedger, VramLine, check,
};
use sws_kernels::Encoding;

use crate::support::{Trouble, Troubled, device, flawed};

/// Checks a device with every encoding.
fn checked(device: &mut dyn ComputeDevice) -> Result<sws_gpu::CheckedCases, DeviceError> {
    let mut ledger = VramLedger::new(1 << 30);
    let result = check(device, &Encoding::ALL, &mut ledger);
    assert_eq!(ledger.line(VramLine::Check), 0);
    result
}

#[test]
fn a_device_with_the_same_bits_passes() {
    let Some(mut device) = device() else { return };
    let cases = checked(&mut device).unwrap();
    eprintln!("{:?} on {}: 0 differ", cases, device.facts().name);
    let encodings = Encoding::ALL.into_iter().filter(|it| Kernel::of(*it).is_some()).count();
    assert_eq!((cases.operations, cases.rows), (30_000, encodings * 2 * 131));
}

#[test]
fn wrong_arithmetic_is_refused() {
    for (flaw, word) in [(Flaw::Unfused, "·"), (Flaw::Flushes, "·")] {
        let Some(mut device) = flawed(flaw) else { return };
        let error = checked(&mut device).unwrap_err();
        eprintln!("{flaw:?}: {error}");
        assert!(matches!(error, DeviceError::OtherBits { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&device.facts().name) && text.contains(word), "{text}");
    }
}

/// One bit of what is read back: of the operations, or of a matrix.
#[test]
fn one_wrong_bit_is_refused() {
    let Some(device) = device() else { return };
    let (mut device, plan) = Troubled::new(device);
    checked(&mut device).unwrap();
    let calls = plan.lock().unwrap().calls;
    // The first of a check's calls allocate, and each matrix takes some.
    let mut refused = 0;
    for at in (1..=calls).step_by(7).chain(calls - 3..=calls) {
        *plan.lock().unwrap() = crate::support::Plan { calls: 0, at: Some((at, Trouble::Flip)) };
        match checked(&mut device) {
            Ok(_) => {}
            Err(DeviceError::OtherBits { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    eprintln!("refused {refused} of the flipped reads");
    assert!(refused > 5, "{refused}");
}

#[test]
fn a_kernel_that_hangs_ends_by_its_limit() {
    if device().is_none() {
        return;
    }
    let limit = Duration::from_millis(50);
    let mut device = OpenClDevice::open(0, limit, Flaw::Slow).unwrap();
    let error = checked(&mut device).unwrap_err();
    assert!(matches!(error, DeviceError::Hung { .. }), "{error}");
    // It answers nothing any more.
    let buffer = device.allocate(16).unwrap();
    assert!(matches!(device.write(buffer, 0, &[0; 16]), Err(DeviceError::Hung { .. })));
}

#[test]
fn a_limit_without_room_is_refused() {
    let Some(mut device) = device() else { return };
    let error = check(&mut device, &[], &mut VramLedger::new(1 << 20)).unwrap_err();
    assert!(matches!(error, DeviceError::TooSmall { limit: 1048576, .. }), "{error}");
}
