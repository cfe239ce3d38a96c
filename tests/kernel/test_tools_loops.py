"""A model that goes round in circles is stopped; one that makes progress is not."""

from kernel.tools import LoopBreaker


def see_all(*calls):
    """Return what the breaker said of each (tool, arguments, result)."""
    breaker = LoopBreaker([])
    return [breaker.see(*call) for call in calls]


def test_the_same_call_with_the_same_result_is_stopped_at_the_third_time():
    said = see_all(*[("search", '{"q": 1}', "nothing")] * 3)
    assert said[:2] == [None, None]
    assert "search was called 3 times" in said[2]


def test_other_calls_in_between_do_not_hide_a_repetition():
    said = see_all(
        ("poll", "{}", "running"),
        ("read", '{"n": 1}', "a"),
        ("poll", "{}", "running"),
        ("read", '{"n": 2}', "b"),
        ("poll", "{}", "running"),
    )
    assert said[:4] == [None] * 4
    assert "poll" in said[4]


def test_how_arguments_are_written_makes_no_difference():
    said = see_all(("t", '{"a": 1, "b": 2}', "x"), ("t", '{"b":2,"a":1}', "x"), ("t", {"a": 1, "b": 2}, "x"))
    assert said[2] is not None
    assert see_all(*[("t", "{broken", "x")] * 3)[2] is not None


def test_a_call_that_gives_something_new_each_time_may_go_on():
    assert not any(see_all(*[("next_page", "{}", f"page {n}") for n in range(30)]))
    assert not any(see_all(*[("read", f'{{"n": {n}}}', "same") for n in range(30)]))


def test_a_cycle_is_stopped_even_if_its_results_differ():
    for length in range(2, 9):
        cycle = [(f"tool{n}", "{}") for n in range(length)]
        calls = [(*cycle[n % length], f"result {n}") for n in range(length * 3)]
        said = see_all(*calls)
        assert not any(said[:-1]), length
        assert f"the last {length} calls" in said[-1]


def test_longer_cycles_are_left_to_the_limit_of_rounds():
    calls = [(f"tool{n % 9}", "{}", f"result {n}") for n in range(27)]
    assert not any(see_all(*calls))


def test_what_was_seen_goes_with_the_frame_and_stays_small():
    recent: list[list[str]] = []
    for number in range(100):
        assert LoopBreaker(recent).see("t", "{}", f"result {number}") is None
    assert len(recent) == 24
    LoopBreaker(recent).see("t", "{}", "same")
    LoopBreaker(recent).see("t", "{}", "same")
    assert LoopBreaker(recent).see("t", "{}", "same") is not None
