//! Pages and files that somebody has changed on purpose.
#![allow(unsafe_code)] // counts allocations

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use laser_index::builder::{BuildOptions, SegmentBuilder};
use laser_index::cache::Location;
use laser_index::choice::{self, Existing};
use laser_index::memory::MemoryStore;
use laser_index::meta::{Meta, Parameters, SegmentEntry};
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::raw::RawForm;
use laser_index::segment::{SegmentMap, write_pages};
use laser_index::{IndexError, cache, check, maintain, scratch, sweep};

/// Remembers the largest allocation.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's allocator's.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: by contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn parameters() -> Parameters {
    Parameters {
        dims: 8,
        metric: Metric::L2,
        quantization: Some(Quantization::F32),
        raw: RawForm::F32,
        element: 0,
        m: 8,
        ef_construction: 32,
        fingerprint: [0; 32],
        model: String::new(),
    }
}

/// Where a server of this test's own would have a file.
fn at<'a>(path: &'a Path, folder: &'a Path) -> Location<'a> {
    Location {
        path,
        folder,
        server: 1,
    }
}

/// An index of one segment.
fn index(folder: &Path) -> (MemoryStore, SegmentEntry) {
    index_of(parameters(), 500, folder)
}

fn index_of(parameters: Parameters, rows: u64, folder: &Path) -> (MemoryStore, SegmentEntry) {
    let dims = parameters.dims;
    let options = BuildOptions {
        parameters,
        threads: 1,
        memory: 64 << 20,
        cache: 0,
        expected: rows as usize,
        folder: folder.to_owned(),
    };
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let sample = [vec![0.0; dims], vec![1.0; dims]];
    let asked = Some(Quantization::F32);
    let encoding = choice::choose(
        Metric::L2,
        dims,
        asked,
        &sample,
        500,
        Existing::default(),
        &|| (),
    );
    let mut builder = SegmentBuilder::new(options, encoding, None).unwrap();
    for tid in 0..rows {
        let x: Vec<f32> = (0..dims as u64)
            .map(|i| ((tid * (i + 3)) as f32).sin())
            .collect();
        builder.push(tid << 16 | 1, &x, &|| ()).unwrap();
    }
    let built = builder.finish(&|| ()).unwrap();
    let entry = write_pages(&store, &built.header, &built.bytes, &built.dead, |_| ()).unwrap();
    maintain::replace(&store, &[], &[entry], None).unwrap();
    (store, entry)
}

/// Counts on the metapage that no relation has pages for allocate nothing.
#[test]
fn counts_are_compared_with_the_relation() {
    let folder = tempfile::tempdir().unwrap();
    let (store, good) = index(folder.path());
    // Building has allocated more than any of these errors may.
    for (data, bitmap, bytes, count) in [
        (u32::MAX, u32::MAX, u64::MAX, u32::MAX),
        (u32::MAX, good.bitmap_pages, good.bytes, good.count),
        (good.data_pages, u32::MAX, good.bytes, u32::MAX),
        (good.data_pages, good.bitmap_pages, u64::MAX / 2, good.count),
        (1, 0, good.bytes, good.count),
    ] {
        let bad = SegmentEntry::new(good.nonce, bytes, good.map, data, bitmap, count, 0);
        LARGEST.store(0, Ordering::Relaxed);
        let error = SegmentMap::read(&store, &bad).unwrap_err();
        assert!(matches!(error, IndexError::Segment { .. }), "{error}");
        let path = folder.path().join("file");
        cache::open(&store, &parameters(), &bad, at(&path, folder.path())).unwrap_err();
        maintain::replace(&store, &[good.nonce], &[bad], None).unwrap();
        sweep::sweep(&store).unwrap_err();
        maintain::delete(&store, |_| false).unwrap_err();
        assert!(
            !check::check(&store, &std::env::temp_dir())
                .unwrap()
                .problems
                .is_empty()
        );
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest < 4 << 20, "{largest} bytes at once");
        maintain::replace(&store, &[bad.nonce], &[good], None).unwrap();
    }
    SegmentMap::read(&store, &good).unwrap();
}

/// What has the name of a segment's file is taken for one only if it can be nothing else.
#[test]
fn files_are_opened_with_care() {
    let folder = tempfile::tempdir().unwrap();
    let (store, entry) = index(folder.path());
    let path = folder.path().join("file");
    drop(cache::open(&store, &parameters(), &entry, at(&path, folder.path())).unwrap());
    let other = folder.path().join("other");
    std::fs::rename(&path, &other).unwrap();
    let len = other.metadata().unwrap().len();
    assert!(len > entry.bytes, "with a guide");

    let makers: [(&str, &dyn Fn()); 5] = [
        ("a pipe", &|| {
            let done = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(done.unwrap().success());
        }),
        ("a link", &|| symlink(&other, &path).unwrap()),
        ("a link to nothing", &|| symlink("nothing", &path).unwrap()),
        ("a file that others may write to", &|| {
            std::fs::copy(&other, &path).unwrap();
            let mode = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(&path, mode).unwrap();
        }),
        ("a file that is too short", &|| {
            std::fs::write(&path, b"short").unwrap();
        }),
    ];
    for (what, make) in makers {
        make();
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (store, path, folder) = (&store, &path, folder.path());
            scope.spawn(move || {
                let view = cache::open(store, &parameters(), &entry, at(path, folder));
                done.send(view.map(|v| v.len())).unwrap();
            });
            if wait
                .recv_timeout(Duration::from_secs(20))
                .ok()
                .and_then(Result::ok)
                != Some(500)
            {
                // A thread that waits for a pipe cannot be joined.
                eprintln!("{what} is not replaced");
                std::process::exit(1);
            }
        });
        let found = path.symlink_metadata().unwrap();
        assert!(
            found.is_file() && found.mode() & 0o777 == 0o600 && found.len() == len,
            "{what} is still there: {found:?}"
        );
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(other.metadata().unwrap().len(), len);

    // What cannot be replaced is done without.
    std::fs::create_dir_all(path.join("full")).unwrap();
    assert_eq!(
        cache::open(&store, &parameters(), &entry, at(&path, folder.path()))
            .unwrap()
            .len(),
        500
    );
}

/// Checksums are computed when nobody has done so lately, and whenever somebody has written to the file.
#[test]
fn files_are_verified_once() {
    let folder = tempfile::tempdir().unwrap();
    let (store, entry) = index(folder.path());
    let path = folder.path().join("file");
    let open = || cache::open(&store, &parameters(), &entry, at(&path, folder.path())).unwrap();
    drop(open());
    let good = std::fs::read(&path).unwrap();
    let file = || std::fs::File::options().write(true).open(&path).unwrap();
    // The last byte of the segment, behind which a guide stands, and one of the guide's.
    for (at, is_segment) in [(entry.bytes - 1, true), (entry.bytes + 20, false)] {
        let verified = path.metadata().unwrap().modified().unwrap();
        let damaged = good[at as usize] ^ 1;
        file().write_all_at(&[damaged], at).unwrap();
        let times = std::fs::FileTimes::new();
        file().set_times(times.set_modified(verified)).unwrap();
        let view = open();
        // A guide is compared with its checksum all the same.
        assert_eq!(
            view.bytes()[entry.bytes as usize - 1] == damaged,
            is_segment
        );
        assert_eq!(
            std::fs::read(&path).unwrap()[at as usize] == damaged,
            is_segment
        );
        // As it is when an hour has gone by.
        let hour = Duration::from_secs(3600);
        file()
            .set_times(times.set_modified(verified - hour))
            .unwrap();
        assert_eq!(open().bytes(), &good[..entry.bytes as usize]);
        file().write_all_at(&[damaged], at).unwrap();
        assert_eq!(open().bytes(), &good[..entry.bytes as usize]);
        assert_eq!(std::fs::read(&path).unwrap(), good);
    }
    // Without a guide a file is as good.
    file().set_len(entry.bytes).unwrap();
    assert_eq!(open().bytes(), &good[..entry.bytes as usize]);
    assert_eq!(path.metadata().unwrap().len(), entry.bytes);
}

/// A large file that was on the disk when the server ended is used by the next one at once, and verified meanwhile where that
/// was long ago; of one that may not have been, the next server believes nothing.
#[test]
fn long_files_outlive_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let dims = 1900;
    let parameters = Parameters {
        dims,
        ..parameters()
    };
    let (store, entry) = index_of(parameters.clone(), 4600, folder.path());
    assert!(entry.bytes >= 32 << 20, "{}", entry.bytes);
    let path = folder.path().join("file");
    let open = |server| {
        let location = Location {
            server,
            ..at(&path, folder.path())
        };
        cache::open(&store, &parameters, &entry, location).unwrap()
    };
    let stamp = || path.metadata().unwrap().modified().unwrap();
    let is_on_disk = || {
        let since = stamp().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        since.subsec_nanos() % 2 == 0
    };
    let wait_until = |done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let file = || std::fs::File::options().write(true).open(&path).unwrap();
    let set_stamp = |time| {
        let times = std::fs::FileTimes::new().set_modified(time);
        file().set_times(times).unwrap();
    };
    let (last, later) = (entry.bytes - 1, 2);
    let good = open(1).bytes()[last as usize];
    let damage = |stamp| {
        file().write_all_at(&[good ^ 1], last).unwrap();
        set_stamp(stamp);
    };

    wait_until(&is_on_disk);
    let on_disk = stamp();
    let inode = path.metadata().unwrap().ino();
    damage(on_disk);
    let view = open(later);
    assert_eq!(view.bytes()[last as usize], good ^ 1, "it is not verified");
    assert!(!view.is_damaged());

    // An hour later: it is used, and found to be damaged.
    set_stamp(on_disk - Duration::from_secs(3600));
    let view = open(later);
    wait_until(&|| view.is_damaged());
    assert!(!path.exists());
    let view = open(later);
    assert_eq!(view.bytes()[last as usize], good);
    assert_ne!(path.metadata().unwrap().ino(), inode);
    wait_until(&is_on_disk);

    // What is right stays, and its stamp is a new one.
    let (inode, old) = (
        path.metadata().unwrap().ino(),
        stamp() - Duration::from_secs(3600),
    );
    set_stamp(old);
    let view = open(later);
    wait_until(&|| stamp() != old);
    assert!(is_on_disk() && !view.is_damaged());
    assert_eq!(path.metadata().unwrap().ino(), inode);
    // So it is where a session has it open for long.
    set_stamp(old);
    let location = Location {
        server: later,
        ..at(&path, folder.path())
    };
    assert!(cache::renew(&view, location));
    wait_until(&|| stamp() != old);
    assert!(is_on_disk() && !view.is_damaged());
    // Not where another one has its name.
    let other = folder.path().join("other");
    std::fs::copy(&path, &other).unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert!(!cache::renew(&view, location));
    std::fs::remove_file(&path).unwrap();
    assert!(!cache::renew(&view, location));
    drop(open(1));
    wait_until(&is_on_disk);

    // One that has not reached the disk is that server's alone which made it.
    // (Where the disk is quick, that is over before anybody sees it.)
    let made = (0..20).find_map(|_| {
        std::fs::remove_file(&path).unwrap();
        let view = open(1);
        let made = stamp();
        let was_before = !is_on_disk();
        wait_until(&is_on_disk);
        drop(view);
        was_before.then_some(made)
    });
    if let Some(made) = made {
        damage(made);
        let view = open(1);
        assert_eq!(view.bytes()[last as usize], good ^ 1, "it is not verified");
        wait_until(&is_on_disk);
        damage(made);
        assert_eq!(open(2).bytes()[last as usize], good, "it is verified");
    }

    // After a day nobody uses it before.
    wait_until(&is_on_disk);
    damage(stamp() - Duration::from_secs(24 * 3600));
    assert_eq!(open(2).bytes()[last as usize], good, "it is verified");
}

/// What is no folder makes room for one.
#[test]
fn the_folder_is_made_whatever_has_its_name() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pgsql_tmp.laser");
    let made = || scratch::Scratch::new(&folder).map(|scratch| scratch.path().exists());
    std::fs::write(&folder, "a file").unwrap();
    assert!(made().unwrap());
    std::fs::remove_dir(&folder).unwrap();
    for target in ["nowhere", "a/b/nowhere", "pgsql_tmp.laser"] {
        std::os::unix::fs::symlink(target, &folder).unwrap();
        assert!(made().unwrap(), "{target}");
        assert!(folder.symlink_metadata().unwrap().is_dir());
        std::fs::remove_dir(&folder).unwrap();
    }
    assert!(!place.path().join("nowhere").exists());
    // What is above it stays what it is.
    std::fs::write(&folder, "a file").unwrap();
    let refused = scratch::Scratch::new(&folder.join("below"));
    let is_refused = matches!(
        refused,
        Err(IndexError::Io {
            action: "create",
            ..
        })
    );
    assert!(is_refused, "{refused:?}");
    assert!(folder.is_file());
}
