import math

import pytest

from tensorcast.engines.vllm.metrics import is_news, measure_load, parse_metrics
from tensorcast.schema.errors import Corrupt

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="a, b=\\"c\\""} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="m"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 10.0
python_gc_objects_collected_total{generation="0"} 1.0
"""


def grown(**changes):
    """The page a while later."""
    page = PAGE
    for old, new in changes.values():
        assert old in page
        page = page.replace(old, new)
    return parse_metrics(page)


def test_the_load_now():
    load = measure_load(parse_metrics(PAGE), None, 0)
    assert (load.running, load.waiting, load.cache_usage) == (3, 2, 0.25)
    assert (load.ttft_s, load.finished, load.window_s) == (None, 0, 0)


def test_what_happened_between_two_looks():
    after = grown(
        prompt=('prompt_tokens_total{engine="0",model_name="m"} 100', "prompt_tokens_total{} 300"),
        queries=('queries_total{engine="0",model_name="m"} 100', "queries_total 300"),
        hits=('hits_total{engine="0",model_name="m"} 40', "hits_total 140"),
        finished=("} 4.0\nvllm:request", "} 9.0\nvllm:request"),
        bucket=('le="1.0",model_name="m"} 10', 'le="1.0",model_name="m"} 14'),
        infinite=('le="+Inf",model_name="m"} 10', 'le="+Inf",model_name="m"} 14'),
        total=('sum{engine="0",model_name="m"} 4.0', "sum 6.0"),
        count=('count{engine="0",model_name="m"} 10.0', "count 14.0"),
    )
    load = measure_load(after, parse_metrics(PAGE), 2.0)
    assert load.finished == 5
    assert load.prompt_tokens_per_s == 100.0
    assert load.cache_hit_share == 0.5
    assert load.ttft_s == 0.5
    assert load.ttft_p95_s == 1.0
    assert load.window_s == 2.0


def test_the_slowest_bucket_has_no_bound():
    after = grown(
        infinite=('le="+Inf",model_name="m"} 10', 'le="+Inf",model_name="m"} 20'),
        count=('count{engine="0",model_name="m"} 10.0', "count 20.0"),
    )
    load = measure_load(after, parse_metrics(PAGE), 1.0)
    assert load.ttft_p95_s == 1.0
    assert math.isfinite(load.ttft_s)


def test_ranks_count_together():
    other = PAGE.replace('engine="0"', 'engine="1"').replace("} 0.25", "} 0.75")
    load = measure_load(parse_metrics(PAGE + other), None, 0)
    assert (load.running, load.waiting, load.cache_usage) == (6, 4, 0.75)


def test_an_engine_that_started_anew_has_no_past():
    after = grown(
        prompt=('prompt_tokens_total{engine="0",model_name="m"} 100', "prompt_tokens_total 5")
    )
    assert measure_load(after, parse_metrics(PAGE), 1.0).window_s == 0


@pytest.mark.parametrize("page", ["", "up 1\n", "vllm:num_requests_running NaN\n", "vllm:x{ 1"])
def test_another_page_is_told(page):
    with pytest.raises(Corrupt, match="no figures"):
        parse_metrics(page)


def test_news_is_what_differs_by_more_than_noise():
    load = measure_load(parse_metrics(PAGE), None, 0)
    more = measure_load(grown(usage=("} 0.25", "} 0.26")), None, 0)
    assert is_news(load, None)
    assert not is_news(more, load)
    assert is_news(measure_load(grown(usage=("} 0.25", "} 0.29")), None, 0), load)
    assert is_news(measure_load(grown(r=("} 3.0", "} 4.0")), None, 0), load)
