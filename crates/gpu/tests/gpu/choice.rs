//! The device that is used, of several.

use sws_gpu::DeviceFacts;

#[test]
fn the_largest_card_with_memory_of_its_own_is_used() {
    let device = |kind: &str, gib: u64| DeviceFacts {
        name: kind.to_owned(),
        driver: String::new(),
        memory: gib << 30,
        largest: gib << 30,
        is_accelerator: kind != "CPU",
        shares_memory: kind != "card",
    };
    for (devices, best) in [
        (vec![], None),
        (vec![("CPU", 64)], Some(0)),
        (vec![("CPU", 64), ("built in", 16)], Some(1)),
        (vec![("built in", 32), ("card", 8), ("CPU", 64)], Some(1)),
        (vec![("card", 8), ("card", 24), ("card", 24)], Some(1)),
    ] {
        let facts: Vec<DeviceFacts> =
            devices.iter().map(|(kind, gib)| device(kind, *gib)).collect();
        assert_eq!(DeviceFacts::best(&facts), best, "{devices:?}");
    }
}
