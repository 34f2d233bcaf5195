# make demo       install, make a tiny random model, generate text with it
# make test       lint, type check, tests (what CI runs)
# make test-slow  the tests that take minutes
# make lint       lint and type check only
# make bench      speed of the tiny model
# make clean      remove what was built; .venv stays

INSTALL_INPUTS := pyproject.toml setup.py ci/constraints.txt ci/setup.sh
INSTALLED := .venv/installed
NATIVE := build/native.stamp
TINY := build/tiny
TANDEM := .venv/bin/tandem
# The tiny model is too small for a second thread.
export OMP_NUM_THREADS ?= 1
PROMPT ?= The quick brown fox

.PHONY: demo test test-slow lint bench clean install
.DELETE_ON_ERROR:

demo: install $(TINY)/config.json
	@echo "==> generating from $(TINY) (random weights, so random text)"
	TANDEM_BACKEND=cpu $(TANDEM) generate "$(PROMPT)" --model $(TINY) --max-tokens 32

test: lint
	@ci/test.sh

test-slow: install
	@ci/slow.sh

lint: install
	@ci/lint.sh
	@ci/typecheck.sh

bench: install $(TINY)/config.json
	@echo "==> prefill speed of $(TINY)"
	TANDEM_BACKEND=cpu $(TANDEM) bench prefill --model $(TINY)
	@echo "==> decode speed of $(TINY)"
	TANDEM_BACKEND=cpu $(TANDEM) bench decode --model $(TINY)

install: $(INSTALLED) $(NATIVE)

$(INSTALLED): $(INSTALL_INPUTS)
	@ci/setup.sh
	@mkdir -p build && touch $@ $(NATIVE)

# The installation compiles the kernels; this compiles them again after a change.
$(NATIVE): $(wildcard csrc/cpu/* csrc/include/*) | $(INSTALLED)
	@echo "==> compiling the native kernels"
	@.venv/bin/python setup.py --quiet build_native --inplace
	@mkdir -p build && touch $@

$(TINY)/config.json: $(INSTALLED)
	@echo "==> making a tiny checkpoint in $(TINY)"
	rm -rf $(TINY)
	$(TANDEM) checkpoint make-tiny --seed 0 --out $(TINY)

clean:
	@echo "==> removing build outputs"
	rm -rf build *.egg-info backends/cpu/libtandem_cpu.*
