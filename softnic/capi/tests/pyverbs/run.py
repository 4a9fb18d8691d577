"""Runs pyverbs' suite on the first device. Prints the release of rdma-core, and a line for each case: file, case, outcome, reason.

Arguments: the folder of the suite, and a folder for a copy, in which compressed files are unpacked. Cases for devices of one
vendor are left out.
"""

import gzip
import importlib
import os
import random
import sys
import unittest

VENDORS = ("mlx5", "efa", "hns", "mana")
SEED = 1

# A release whose pyverbs does not have its version.
WITHOUT_VERSION = "44"


def copy(source, target):
    """Copies the suite, and unpacks compressed files, as Debian's package has them."""
    for name in os.listdir(source):
        path = os.path.join(source, name)
        if name.endswith((".py", ".py.gz")):
            opened = gzip.open(path) if name.endswith(".gz") else open(path, "rb")
            with opened as file, open(os.path.join(target, name.removesuffix(".gz")), "wb") as to:
                to.write(file.read())


class Lines(unittest.TestResult):
    """Prints each outcome. What the cases print goes to standard error."""

    def __init__(self, out):
        super().__init__()
        self.out = out
        self.outcome = None

    def startTest(self, test):
        super().startTest(test)
        self.outcome = ("ok", "")
        # Cases choose sizes and flags at random.
        random.seed(SEED)

    def addSkip(self, test, reason):
        self.outcome = ("skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = ("failed", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)

    def stopTest(self, test):
        _, file, group, case = test.id().split(".")
        outcome, reason = self.outcome
        reason = " | ".join(reason.split("\n"))
        print(f"{file}.py {group}.{case.removeprefix('test_')} {outcome} {reason}", file=self.out, flush=True)


def load(folder):
    """The cases of all files but the vendors'."""
    for name in sorted(os.listdir(folder)):
        if name.startswith("test_") and not any(vendor in name for vendor in VENDORS):
            yield unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("tests." + name[:-3]))


def get_addr(self, device, port, index):
    """Replaces a question to sysfs and to `ip` for the first address of the interface, which is another one of it."""
    self.args.append([device, port, index, os.environ["SOFTNIC_ADDR"], None])


def get_pkey(device, port=1, index=0):
    """Replaces a file of sysfs."""
    return 0xFFFF


def main():
    source, target = sys.argv[1:3]
    folder = os.path.join(target, "tests")
    os.mkdir(folder)
    copy(source, folder)
    # Its own file would load all modules.
    open(os.path.join(folder, "__init__.py"), "w").close()
    sys.path[:0] = [folder, target]
    sys.argv[1:] = ["--dev", "softnic0", "--gid", "0"]
    importlib.import_module("args_parser").parser.parse_args()
    try:
        print(importlib.import_module("pyverbs.__version__").__version__)
    except ModuleNotFoundError:
        print(WITHOUT_VERSION)
    importlib.import_module("tests.base").RDMATestCase._get_ip_mac = get_addr
    importlib.import_module("tests.utils").get_pkey_from_kernel = get_pkey
    out, sys.stdout = sys.stdout, sys.stderr
    result = Lines(out)
    unittest.TestSuite(load(folder)).run(result)
    out.flush()
    # Without the destructors of objects that cases have left.
    os._exit(0)


main()
