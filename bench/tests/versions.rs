//! Versions that the reports name must be those that are built.

#[test]
fn the_reports_name_the_fjall_that_is_linked() {
    let lock = include_str!("../Cargo.lock");
    let fjall =
        lock.split("[[package]]").find(|p| p.contains("name = \"fjall\"")).expect("fjall is a dependency");
    let version = format!("version = \"{}\"", pumice_compare::machine::FJALL_VERSION);
    assert!(fjall.contains(&version), "machine.rs says {version}, Cargo.lock:{fjall}");
}
