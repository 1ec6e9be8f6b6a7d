//! Compiles the kernels as C++ for the host, for elements in bf16 and in f32.

fn main() {
    for path in ["src", "../kernels"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let compile = |name: &str, file: &str, exact: bool| {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").include("src").file(file);
        if exact {
            build.define("LASER_EXACT", None);
        }
        build.compile(name);
    };
    for kernels in ["lstm", "transformer"] {
        let file = format!("src/{kernels}.cpp");
        compile(&format!("laser_emulation_{kernels}_bf16"), &file, false);
        compile(&format!("laser_emulation_{kernels}_f32"), &file, true);
    }
    // Linked last: the others need it.
    compile("laser_emulation_fibers", "src/fibers.cpp", false);
}
