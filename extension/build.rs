//! How the library is linked.

fn main() {
    // Mappings go through `__wrap_mmap` of `src/memory.rs`.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--wrap=mmap");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
