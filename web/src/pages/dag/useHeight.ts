/** The height from the top of an element to the end of the window. */
import { useLayoutEffect, useRef, useState } from 'preact/hooks'

export function useHeight(bottom = 64, least = 320): [{ current: HTMLDivElement | null }, number] {
  const ref = useRef<HTMLDivElement>(null)
  const [height, setHeight] = useState(() => Math.max(least, innerHeight - 260))
  useLayoutEffect(() => {
    const measure = () => ref.current && setHeight(Math.max(least, innerHeight - ref.current.getBoundingClientRect().top - scrollY - bottom))
    measure()
    addEventListener('resize', measure)
    return () => removeEventListener('resize', measure)
  }, [ref.current])
  return [ref, height]
}
