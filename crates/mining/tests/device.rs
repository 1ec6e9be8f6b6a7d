//! Searches with a device give what kernels give, bit for bit. On a GPU where one is there.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;
#[path = "../../../tests/src/skipped.rs"]
mod skipped;

use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use common::rows;
use laser_mining::{Device, Error, Kernel, RowStore, knn};
use proptest::prelude::*;

/// The processor, which runs the same operations, and the GPU if there is one.
static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let cpu = Device::new(candle_core::Device::Cpu).unwrap();
    [cpu].into_iter().chain(gpu()).collect()
});

#[cfg(feature = "cuda")]
fn gpu() -> Option<Device> {
    Device::cuda(0)
        .inspect_err(|error| skipped::skipped("mining on a GPU", &error.to_string()))
        .ok()
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> Option<Device> {
    skipped::skipped("mining on a GPU", "built without the feature cuda");
    None
}

fn options(device: Option<&Device>) -> knn::Options<'_> {
    knn::Options {
        threads: 2,
        kernel: Kernel::F32,
        device,
        ..Default::default()
    }
}

#[test]
fn many_tiles_and_blocks() {
    // More than one stripe on each side, the last ones incomplete.
    let dimensions = 24;
    let (x, y) = (
        rows(21, 5000, dimensions, 30, true),
        rows(22, 9000, dimensions, 30, true),
    );
    for device in &*DEVICES {
        for k in [1, 16] {
            let expected = knn::both(&x, &y, dimensions, k, &options(None)).unwrap();
            for memory in [None, Some(4_000_000)] {
                let found = knn::Options {
                    memory,
                    ..options(Some(device))
                };
                let found = knn::both(&x, &y, dimensions, k, &found).unwrap();
                assert!(found == expected, "{}, k {k}, {memory:?}", device.name());
            }
        }
    }
}

#[test]
fn files_and_one_direction() {
    let dimensions = 40;
    let (x, y) = (
        rows(23, 700, dimensions, 0, false),
        rows(24, 900, dimensions, 0, false),
    );
    let expected = knn::forward(x[..].into(), y[..].into(), dimensions, 4, &options(None)).unwrap();
    let mut store = RowStore::new(dimensions, 10_000, None);
    x.chunks(dimensions)
        .for_each(|row| store.push(row).unwrap());
    for device in &*DEVICES {
        let limited = knn::Options {
            memory: Some(500_000),
            ..options(Some(device))
        };
        let found = knn::forward((&store).into(), y[..].into(), dimensions, 4, &limited).unwrap();
        assert!(found == expected, "{}", device.name());
    }
}

#[test]
fn a_search_can_be_cancelled_and_watched() {
    let x = rows(25, 3000, 16, 0, false);
    for device in &*DEVICES {
        let control = knn::Control::default();
        let watched = knn::Options {
            control: Some(&control),
            ..options(Some(device))
        };
        knn::both(&x, &x, 16, 4, &watched).unwrap();
        assert_eq!(control.done.load(Ordering::Relaxed), 9_000_000);
        assert_eq!(control.total.load(Ordering::Relaxed), 9_000_000);
        control.cancel.store(true, Ordering::Relaxed);
        let error = knn::both(&x, &x, 16, 4, &watched).unwrap_err();
        assert!(matches!(error, Error::Cancelled));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_shape(
        seed in 0u64..1000, n in 1usize..300, m in 1usize..300, dimensions in 1usize..70,
        k in 1usize..20, copies: bool, centres in 0usize..4,
    ) {
        let x = rows(seed, n, dimensions, centres, copies);
        let y = rows(seed + 1000, m, dimensions, centres, copies);
        let expected = knn::both(&x, &y, dimensions, k, &options(None)).unwrap();
        for device in &*DEVICES {
            let found = knn::both(&x, &y, dimensions, k, &options(Some(device))).unwrap();
            prop_assert!(found == expected, "{}", device.name());
        }
    }
}
