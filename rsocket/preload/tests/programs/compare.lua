-- Compares each body with a file, given after `--`.
local threads = {}

function setup(thread)
    table.insert(threads, thread)
end

function init(arguments)
    local file = assert(io.open(arguments[1], "rb"))
    expected = file:read("*a")
    file:close()
    wrong = 0
end

function response(_, _, body)
    if body ~= expected then
        wrong = wrong + 1
    end
end

function done()
    local sum = 0
    for _, thread in ipairs(threads) do
        sum = sum + thread:get("wrong")
    end
    print(sum .. " wrong")
end
