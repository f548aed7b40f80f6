from r2r2.bench.roofline import ProblemSize, measure_roofline


def test_roofline_is_measured_several_times():
    roofline = measure_roofline(ProblemSize(matrix=64, copied=1000), repeats=3)
    for stats in (roofline.tflops, roofline.gb_per_s):
        assert len(stats.each) == 3
        assert 0 < stats.lowest <= stats.median <= stats.highest
    assert (roofline.matrix, roofline.copied) == (64, 1000)
