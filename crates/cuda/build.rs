//! Compiles the kernels to PTX, if there is CUDA to do it.

#[cfg(feature = "cuda")]
fn main() -> cudaforge::Result<()> {
    println!("cargo::rerun-if-changed=kernels");
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    cudaforge::KernelBuilder::new()
        .source_files(vec!["kernels/lstm.cu", "kernels/transformer.cu"])
        .watch(vec![
            "kernels/lstm.cuh",
            "kernels/transformer.cuh",
            "kernels/platform.cuh",
        ])
        .include_path("kernels")
        .args(["-std=c++17", "-O3"])
        .build_ptx()?
        .write(out.join("ptx.rs"))
}

#[cfg(not(feature = "cuda"))]
fn main() {}
