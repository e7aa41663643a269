//! How the parents of a chain are found by the names in its files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::support::*;
use lunway_vhdx::format::Guid;
use lunway_vhdx::{Chain, DiskKind, Locator, VhdxOpenError, VhdxOpenOptions, merge, set_parent};

fn file(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).expect("a file")
}

fn data_write(path: &Path) -> Guid {
    open(file(path), false, 1).data_write_guid()
}

/// A disk whose parent is `parent`, under the name that its locator has of it.
fn child(path: &Path, parent: &Path, name: &str) {
    let options = child_options(&open(file(parent), false, 1), 4 * MIB, 1 << 20);
    make(&file(path), &options, 2);
    rename_parent(path, Locator::new(data_write(parent), name, None));
}

fn rename_parent(path: &Path, locator: Locator) {
    set_parent(&file(path), &locator, guids(3).as_mut()).unwrap_or_else(|error| panic!("{error}"));
}

/// The names of the files of a chain, below the folder.
fn chain(folder: &Path, name: &str) -> Result<Vec<PathBuf>, VhdxOpenError> {
    let root = folder.canonicalize().expect("a folder");
    let opened = Chain::open_files(&root.join(name), &root, &VhdxOpenOptions::read_only(), || guids(4))?;
    Ok(opened.paths().iter().map(|path| path.strip_prefix(&root).expect("inside").to_owned()).collect())
}

#[test]
fn a_parent_is_found_by_its_name_or_by_the_one_that_differs_in_its_case() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("Base")).expect("a folder");
    make(&file(&at("Base/Disk Ä.vhdx")), &options(DiskKind::Dynamic, 4 * MIB, 1 << 20, 512), 1);
    child(&at("child.avhdx"), &at("Base/Disk Ä.vhdx"), "BASE\\DISK ä.VHDX");
    let found = [PathBuf::from("child.avhdx"), PathBuf::from("Base/Disk Ä.vhdx")];
    assert_eq!(chain(folder.path(), "child.avhdx").expect("a chain"), found);
    // What is called so is taken, whatever else there is.
    fs::create_dir(at("BASE")).expect("a folder");
    fs::copy(at("Base/Disk Ä.vhdx"), at("BASE/DISK ä.VHDX")).expect("a copy");
    assert_eq!(chain(folder.path(), "child.avhdx").expect("a chain")[1], Path::new("BASE/DISK ä.VHDX"));
    // Of two that are as near none is.
    fs::rename(at("BASE/DISK ä.VHDX"), at("BASE/disk ä.vhdx")).expect("a name");
    fs::copy(at("BASE/disk ä.vhdx"), at("BASE/Disk Ä.vhdx")).expect("a copy");
    let said = chain(folder.path(), "child.avhdx").expect_err("two parents").to_string();
    assert!(said.contains("BASE/disk ä.vhdx") && said.contains("BASE/Disk Ä.vhdx"), "{said}");
    fs::remove_dir_all(at("BASE")).expect("a folder");
    fs::remove_dir_all(at("Base")).expect("a folder");
    let said = chain(folder.path(), "child.avhdx").expect_err("no parent").to_string();
    assert!(said.contains("the parent was not found"), "{said}");
}

#[test]
fn a_name_of_another_case_leads_nowhere_outside_of_the_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["inside", "outside"] {
        fs::create_dir(at(name)).expect("a folder");
    }
    make(&file(&at("outside/base.vhdx")), &options(DiskKind::Dynamic, 4 * MIB, 1 << 20, 512), 1);
    child(&at("inside/child.avhdx"), &at("outside/base.vhdx"), "LINK\\BASE.VHDX");
    std::os::unix::fs::symlink(at("outside"), at("inside/link")).expect("a link");
    let said = chain(&at("inside"), "child.avhdx").expect_err("a parent outside").to_string();
    assert!(said.contains("the parent was not found") && !said.contains("outside"), "{said}");
    fs::copy(at("outside/base.vhdx"), at("outside/Base.vhdx")).expect("a copy");
    let said = chain(&at("inside"), "child.avhdx").expect_err("two parents outside").to_string();
    assert!(said.contains("the parent was not found") && !said.contains("outside"), "{said}");
}

#[test]
fn disks_that_are_each_others_parents_are_no_chain() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    make(&file(&at("base.vhdx")), &options(DiskKind::Dynamic, 4 * MIB, 1 << 20, 512), 1);
    child(&at("a.avhdx"), &at("base.vhdx"), "base.vhdx");
    child(&at("b.avhdx"), &at("a.avhdx"), "A.AVHDX");
    assert_eq!(chain(folder.path(), "b.avhdx").expect("a chain").len(), 3);
    rename_parent(&at("a.avhdx"), Locator::new(data_write(&at("b.avhdx")), "b.avhdx", None));
    for name in ["a.avhdx", "b.avhdx"] {
        let said = chain(folder.path(), name).expect_err("a circle").to_string();
        assert!(said.starts_with("the chain of parents leads back to"), "{said}");
    }
    rename_parent(&at("a.avhdx"), Locator::new(data_write(&at("a.avhdx")), "a.avhdx", None));
    let said = chain(folder.path(), "a.avhdx").expect_err("its own parent").to_string();
    assert!(said.starts_with("the chain of parents leads back to"), "{said}");
    // Nor does a merge, or the question who the children of one are, go on for ever.
    rename_parent(&at("a.avhdx"), Locator::new(data_write(&at("b.avhdx")), "b.avhdx", None));
    let top = at("b.avhdx");
    let merged =
        merge::merge_files(&top, &at("a.avhdx"), folder.path(), true, |_| Ok(()), || guids(5), &mut |_| {
            merge::Go::On
        });
    assert!(merged.is_err_and(|error| error.to_string().contains("leads back to")));
    assert_eq!(merge::children(&top).expect("a list").len(), 1);
}
