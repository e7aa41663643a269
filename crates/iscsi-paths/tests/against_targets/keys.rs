//! Whether the page of all keys of a `paths.toml` says what the file takes.

#[test]
fn every_key_of_a_paths_file_is_in_its_page() {
    let schema = lunway_iscsi_paths::paths_file_schema();
    let page = "# All keys of paths.toml\n\nThe keys of a file that describes [one disk over many paths](multipath.md). The same as a manual page: \
        `lunway man lunway-paths.toml`. Written by\n`LUNWAY_WRITE_DOCS=1 cargo test -p lunway-iscsi-paths --test against_targets keys` from the type that the file is read into.\n"
        .to_owned()
        + &lunway_reference::markdown(&lunway_reference::keys(&schema, &schema["$defs"]));
    lunway_foreign::written::says(
        "docs/src/paths.md",
        &page,
        "-p lunway-iscsi-paths --test against_targets keys",
    );
}
